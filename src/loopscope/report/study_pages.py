"""The paper's tables and figures for these runs as the page shows them, and the comparison with the paper's numbers."""

import tempfile
from base64 import b64encode
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from loopscope.stats import Bootstrap
from loopscope.studies import FIGURES, TABLES, Study
from loopscope.studies.comparison import compare
from loopscope.studies.records import Records
from loopscope.studies.render.dialect import PlainDialect
from loopscope.studies.render.sheet import Sheet, groups, sheets
from loopscope.studies.result import Row, TableResult
from loopscope.studies.usable_conditions import notes_on

SVG_LIMIT = 250_000
"""A figure of many points is smaller as pixels: larger drawings than this become PNG."""
DPI = 200
PIXELS_PER_INCH = 140
"""Figures are drawn for print with 8-point type; on a screen they stand half as large again."""


def compute_tables(
    records: Records, bootstrap: Bootstrap, names: Iterable[str] = tuple(TABLES)
) -> dict[str, TableResult[Row]]:
    """Tables of the paper, all or some."""
    return {name: TABLES[name].table(records, bootstrap) for name in names}


def table_pages(tables: Mapping[str, TableResult[Row]]) -> list[dict[str, Any]]:
    """The tables that have rows, laid out."""
    return [_page(result) | _about(TABLES[name]) for name, result in tables.items() if result.rows]


def missing_tables(tables: Mapping[str, TableResult[Row]]) -> list[dict[str, str]]:
    """The tables without a row, and why they have none."""
    # What is said of the conditions in other tables is no reason.
    said = set(notes_on(row.condition for result in tables.values() for row in result.rows))
    return [
        _about(TABLES[name]) | {"reason": "; ".join(note for note in result.notes if note not in said)}
        for name, result in tables.items()
        if not result.rows
    ]


def comparison_page(
    records: Records, bootstrap: Bootstrap, tables: Mapping[str, TableResult[Row]]
) -> dict[str, Any] | None:
    """Published cells beside the runs' own, from tables already computed; None where nothing is comparable."""
    found = compare(records, bootstrap, computed=tables)
    if not found.rows:
        return None
    return _page(found.table()) | {"summary": found.summary(), "name": "compare"}


def figure_pages(records: Records, bootstrap: Bootstrap) -> list[dict[str, Any]]:
    """The figures that these runs can fill, as data addresses; none where matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return []
    pages = []
    for study in FIGURES.values():
        result = study.figure(records, bootstrap)
        if not result.shown:
            continue
        pages.append(
            {
                **_about(study),
                "title": result.title,
                "caption": result.caption,
                "notes": list(result.notes),
                "width": round(result.figure.get_size_inches()[0] * PIXELS_PER_INCH),
                "image": _image(result, study.name),
            }
        )
    return pages


def _image(result: Any, name: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        drawing = result.save(Path(folder) / f"{name}.svg").read_bytes()
        if len(drawing) <= SVG_LIMIT:
            return f"data:image/svg+xml;base64,{b64encode(drawing).decode()}"
        pixels = result.save(Path(folder) / f"{name}.png", dpi=DPI).read_bytes()
        return f"data:image/png;base64,{b64encode(pixels).decode()}"


def _about(study: Study) -> dict[str, str]:
    return {"name": study.name, "summary": study.summary, "paper": study.paper}


def _page(result: TableResult[Row]) -> dict[str, Any]:
    return {
        "title": result.title,
        "caption": result.caption,
        "notes": list(result.notes),
        "sheets": [_sheet(sheet) for sheet in sheets(result, PlainDialect())],
    }


def _sheet(sheet: Sheet) -> dict[str, Any]:
    return {
        "title": sheet.title,
        "groups": [list(group) for group in groups(sheet.columns)],
        "heads": [column.head for column in sheet.columns],
        "left": [column.text for column in sheet.columns],
        "lines": [list(line) for line in sheet.lines],
    }
