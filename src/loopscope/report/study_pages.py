"""Tables and figures of all studies for these runs as the page shows them, and the comparison with the paper's numbers.

Every cell of a table names the condition that it is about, so that the page can show those of one run, task or update.
"""

from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import Any

from loopscope.report.figure_svg import UnknownDrawingError, page_drawing
from loopscope.stats import Bootstrap
from loopscope.studies import FIGURES, TABLES, Study
from loopscope.studies.comparison import compare
from loopscope.studies.conditions import Condition
from loopscope.studies.declare import Row, TableResult
from loopscope.studies.populations import notes_on
from loopscope.studies.records import Records
from loopscope.studies.render import Sheet, groups, on_screen, sheets

DPI = 200
"""Of a figure with so many points that it is smaller as pixels."""
PIXELS_PER_INCH = 140
"""Figures are drawn for print with 8-point type; on a screen they stand half as large again."""


def compute_tables(
    records: Records, bootstrap: Bootstrap, names: Iterable[str] = tuple(TABLES)
) -> dict[str, TableResult]:
    """Tables by name, all or some."""
    return {name: TABLES[name].table(records, bootstrap) for name in names}


def study_pages(records: Records, bootstrap: Bootstrap, tables: Mapping[str, TableResult]) -> dict[str, Any]:
    """Everything that the view of studies shows."""
    places = Places()
    figures, undrawn = figure_pages(records, bootstrap)
    compared = compare(records, bootstrap, computed=tables)
    return {
        "tables": [
            _page(result, places) | _about(TABLES[name]) | {"command": f"loopscope tables RUN --name {name}"}
            for name, result in tables.items()
            if result.rows
        ],
        "missing": missing_tables(tables) + undrawn,
        "figures": figures,
        "comparison": _page(compared.table(), places)
        | {"name": "compare", "caption": compared.summary(), "command": "loopscope compare RUN"}
        if compared.rows
        else None,
        "places": places.described,
    }


class Places:
    """The conditions of all tables, numbered: what can be chosen is a run, a task, an update."""

    def __init__(self) -> None:
        self.described: list[dict[str, Any]] = []
        self._numbers: dict[tuple[Any, ...], int] = {}

    def number(self, condition: Condition) -> int:
        """The number of a condition."""
        key = (condition.run, condition.model_title, condition.task, condition.split, condition.transition)
        if key not in self._numbers:
            self._numbers[key] = len(self.described)
            run, model, task, split, transition = key
            about = {"run": run, "model": model, "task": f"{task}/{split}", "title": condition.set_title}
            self.described.append(about | {"t": transition})
        return self._numbers[key]


def missing_tables(tables: Mapping[str, TableResult]) -> list[dict[str, str]]:
    """The tables without a row, and why they have none."""
    # What is said of the conditions in other tables is no reason.
    said = set(notes_on(row.condition for result in tables.values() for row in result.rows))
    return [
        _about(TABLES[name]) | {"reason": "; ".join(note for note in result.notes if note not in said)}
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
            missing.append(_about(study) | {"reason": "; ".join(result.notes) or result.caption})
            continue
        pages.append(
            {
                **_about(study),
                "title": result.title,
                "caption": result.caption,
                "notes": list(result.notes),
                "width": round(result.figure.get_size_inches()[0] * PIXELS_PER_INCH),
                "command": f"loopscope figures RUN --name {study.name}",
                **_drawing(result, study.name),
            }
        )
    return pages, missing


def _drawing(result: Any, name: str) -> dict[str, Any]:
    """Shapes in the page's colours, or a picture where there are too many."""
    try:
        return {"drawing": page_drawing(result.drawn("svg", DPI), f"figure-{name}")}
    except UnknownDrawingError:
        return {"image": f"data:image/png;base64,{b64encode(result.drawn('png', DPI)).decode()}"}


def _about(study: Study) -> dict[str, str]:
    return {"name": study.name, "summary": study.summary, "paper": study.paper}


def _page(result: TableResult, places: Places) -> dict[str, Any]:
    frame = result.to_polars()
    head = frame[:0].write_csv()
    lines = [frame[place].write_csv(include_header=False) for place in range(frame.height)]
    return {
        "title": result.title,
        "caption": result.caption,
        "notes": list(result.notes),
        "sheets": [_sheet(sheet, places) for sheet in sheets(result, uniform=True)],
        "latex": result.to_latex(),
        "csv": {"head": head, "lines": lines, "places": [places.number(row.condition) for row in result.rows]},
    }


def _sheet(sheet: Sheet, places: Places) -> dict[str, Any]:
    return {
        "title": sheet.title,
        "groups": [[on_screen(head), width] for head, width in groups(sheet.columns)],
        "heads": [on_screen(column.head) for column in sheet.columns],
        "left": [column.left for column in sheet.columns],
        "lines": [[on_screen(cell) for cell in line] for line in sheet.lines],
        "places": [_places(rows, places) for rows in sheet.rows],
    }


def _places(rows: tuple[Row | None, ...], places: Places) -> int | list[int]:
    """The condition of a line, or of each of its cells where they differ; -1 for a cell of no one condition."""
    found = [-1 if row is None else places.number(row.condition) for row in rows]
    return found[0] if len(set(found)) == 1 else found
