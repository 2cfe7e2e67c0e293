"""Tables as data, in natural units and full precision: CSV, JSON and polars frames.

CSV and frames have one line per row, with `_low` and `_high` beside every estimate; JSON has every field with its
condition.
"""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from loopscope.stats import Estimate
from loopscope.studies.result import Row, TableResult, Value

if TYPE_CHECKING:
    import polars as pl

CONDITION = {
    "run": "run",
    "model": "model",
    "weights": "weights",
    "task": "task",
    "split": "split",
    "subset": "subset",
    "n": "measured_questions",
    "expected": "expected_questions",
    "finished": "finished",
    "transition": "transition",
    "states": "states",
    "readout": "readout",
}
"""Fields of the condition and their heads; some rows have an `n` and `questions` of their own."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How a cell begins that a spreadsheet would compute."""


def as_csv(result: TableResult[Row]) -> str:
    """One line per row; undefined numbers are empty."""
    return "".join(csv_lines(result))


def csv_lines(result: TableResult[Row]) -> list[str]:
    """The head, and the line of every row."""
    heads, lines = _long_form(result)
    return [_csv_line(heads), *(_csv_line([_written(cell) for cell in line]) for line in lines)]


def _csv_line(cells: list[Any]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(cells)
    return buffer.getvalue()


def as_frame(result: TableResult[Row]) -> pl.DataFrame:
    """One row per row; undefined numbers are null."""
    import polars as pl

    heads, lines = _long_form(result)
    rows = [[None if isinstance(cell, float) and math.isnan(cell) else cell for cell in line] for line in lines]
    return pl.DataFrame(rows, schema=heads, orient="row", infer_schema_length=None)


def _long_form(result: TableResult[Row]) -> tuple[list[str], list[list[Any]]]:
    """Heads and cells; an estimate takes three columns, its value and both ends of its interval."""
    estimates = {name for name in result.measures if any(isinstance(row.value(name), Estimate) for row in result.rows)}
    heads = ["table", *CONDITION.values(), "key"]
    for name in result.measures:
        heads += [name, f"{name}_low", f"{name}_high"] if name in estimates else [name]
    lines = []
    for row in result.rows:
        cells: list[Any] = [result.study, *(getattr(row.condition, name) for name in CONDITION), row.key]
        for name in result.measures:
            cells += _cells(row, name, name in estimates)
        lines.append(cells)
    return heads, lines


def _written(cell: Any) -> Any:
    """Numbers as they are, nothing where one is undefined; text that no spreadsheet takes for a formula."""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, str):
        return f"'{cell}" if cell.startswith(FORMULA) else cell
    return "" if cell is None or cell != cell else cell


def _cells(row: Row, name: str, estimated: bool) -> list[Any]:
    value = row.value(name)
    if not estimated:
        return [value]
    if not isinstance(value, Estimate):
        return [value, None, None]
    interval = value.interval
    return [value.value, *((interval.low, interval.high) if interval else (None, None))]


def as_json(result: TableResult[Row]) -> str:
    """The whole table; undefined numbers are null."""
    return json.dumps(as_dict(result), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def as_dict(result: TableResult[Row]) -> dict[str, Any]:
    """Plain values."""
    return {
        "study": result.study,
        "label": result.label,
        "title": result.title,
        "caption": result.caption,
        "rows": [row_dict(row) for row in result.rows],
        "notes": list(result.notes),
    }


def row_dict(row: Row) -> dict[str, Any]:
    """Plain values of one row."""
    measures = {name: plain(row.value(name)) for name in row.measures()}
    condition = {name: value for name, value in asdict(row.condition).items() if name != "place"}
    return {"condition": condition, "key": row.key, **measures}


def plain(value: Value) -> Any:
    """An estimate as an object, a number as itself, NaN and None as null."""
    if isinstance(value, Estimate):
        interval = value.interval
        ends = {"low": interval.low, "high": interval.high, "undefined": interval.undefined} if interval else None
        return {"value": value.value, "n": value.n, "interval": ends}
    if isinstance(value, float) and math.isnan(value):
        return None
    return value
