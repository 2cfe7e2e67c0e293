"""Tables and figures of all studies as the page shows them, and the comparison with the paper's numbers."""

from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import Any

from loopscope.stats import Bootstrap
from loopscope.studies import FIGURES, TABLES
from loopscope.studies.comparison import compare
from loopscope.studies.declare import TableResult
from loopscope.studies.populations import notes_on
from loopscope.studies.records import Records
from loopscope.studies.render import Sheet, groups, on_screen, sheets

PIXELS_PER_INCH = 140
"""Figures are drawn for print with 8-point type; on a screen they stand half as large again."""
LARGEST_DRAWING = 600_000
"""A figure with so many points that its SVG is larger becomes pixels."""
DPI = 200
"""Of such a figure."""
MOST_LINES = 500
"""Lines of a table that the page shows; its CSV has all."""


def compute_tables(
    records: Records, bootstrap: Bootstrap, names: Iterable[str] = tuple(TABLES)
) -> dict[str, TableResult]:
    """Tables by name, all or some."""
    return {name: TABLES[name].table(records, bootstrap) for name in names}


def study_pages(records: Records, bootstrap: Bootstrap, tables: Mapping[str, TableResult]) -> dict[str, Any]:
    """Everything that the view of studies shows."""
    figures, undrawn = figure_pages(records, bootstrap)
    compared = compare(records, bootstrap, computed=tables)
    names = {"name": "compare", "caption": compared.summary(), "command": "loopscope compare RUN"}
    return {
        "tables": [
            _page(result) | {"name": name, "command": f"loopscope tables RUN --name {name}"}
            for name, result in tables.items()
            if result.rows
        ],
        "missing": missing_tables(tables) + undrawn,
        "figures": figures,
        "comparison": _page(compared.table()) | names if compared.rows else None,
    }


def missing_tables(tables: Mapping[str, TableResult]) -> list[dict[str, str]]:
    """The tables without a row, and why they have none."""
    # Notes on the conditions, which stand at other tables too, are not reasons.
    general = set(notes_on(row.condition for result in tables.values() for row in result.rows))
    return [
        {"name": name, "reason": "; ".join(note for note in result.notes if note not in general)}
        for name, result in tables.items()
        if not result.rows
    ]


def figure_pages(records: Records, bootstrap: Bootstrap) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """The figures that these runs can fill, and the others with the reason; neither where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return [], []
    pages, missing = [], []
    for study in FIGURES.values():
        result = study.figure(records, bootstrap)
        if not result.shown:
            missing.append({"name": study.name, "reason": "; ".join(result.notes) or result.caption})
            continue
        pages.append({
            "name": study.name,
            "title": result.title,
            "caption": result.caption,
            "notes": list(result.notes),
            "width": round(result.figure.get_size_inches()[0] * PIXELS_PER_INCH),
            "image": _image(result),
            "command": f"loopscope figures RUN --name {study.name}",
        })  # fmt: skip
    return pages, missing


def _image(result: Any) -> str:
    """The figure as an image inside the page, where it can neither run nor load anything."""
    svg = result.drawn("svg", DPI)
    kind, image = ("svg+xml", svg) if len(svg) < LARGEST_DRAWING else ("png", result.drawn("png", DPI))
    return f"data:image/{kind};base64,{b64encode(image).decode()}"


def _page(result: TableResult) -> dict[str, Any]:
    return {
        "title": result.title,
        "caption": result.caption,
        "notes": list(result.notes),
        "sheets": [_sheet(sheet) for sheet in sheets(result)],
        "latex": result.to_latex(),
        "csv": result.to_polars().write_csv(),
    }


def _sheet(sheet: Sheet) -> dict[str, Any]:
    """A sheet without the words that are the same in every line, which stand above it."""
    columns = list(range(len(sheet.columns)))
    words = [at for at in columns if sheet.columns[at].left]
    same = [at for at in words if len({line[at] for line in sheet.lines}) == 1 < len(sheet.lines)]
    same = same[:-1] if same == words else same  # something must name the lines
    kept = [at for at in columns if at not in same]
    return {
        "title": sheet.title,
        "said": [(sheet.columns[at].head.replace("\n", " "), sheet.lines[0][at]) for at in same],
        "groups": [(on_screen(name), width) for name, width in groups([sheet.columns[at] for at in kept])],
        "heads": [on_screen(sheet.columns[at].head) for at in kept],
        "left": [sheet.columns[at].left for at in kept],
        "lines": [[on_screen(line[at]) for at in kept] for line in sheet.lines[:MOST_LINES]],
        "more": max(0, len(sheet.lines) - MOST_LINES),
    }
