"""Tables as JSON: every field of every row in natural units and full precision, with intervals and conditions."""

import json
import math
from dataclasses import asdict
from typing import Any

from loopscope.stats import Estimate
from loopscope.studies.result import Row, TableResult, Value


def render(result: TableResult[Row]) -> str:
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
    return {"condition": asdict(row.condition), "key": row.key, **measures}


def plain(value: Value) -> Any:
    """An estimate as an object, a number as itself, NaN and None as null."""
    if isinstance(value, Estimate):
        interval = value.interval
        ends = {"low": interval.low, "high": interval.high, "undefined": interval.undefined} if interval else None
        return {"value": value.value, "n": value.n, "interval": ends}
    if isinstance(value, float) and math.isnan(value):
        return None
    return value
