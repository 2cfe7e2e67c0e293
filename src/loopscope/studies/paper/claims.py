"""What the paper's text says of several rows at once, as data: the printed number, and what it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from loopscope.studies.paper.printed import Printed, toml
from loopscope.studies.paper.published_numbers import Setting, setting_of, tables
from loopscope.studies.paper.quantities import Quantity


@dataclass(frozen=True)
class Claim:
    """A number of the running text."""

    name: str
    label: str
    """LaTeX label of the section."""
    says: str
    """What it is, in words."""
    printed: str
    unit: float
    quantity: Quantity
    study: str
    of: tuple[str, ...]
    """What is taken of each row."""
    how: str
    """What is made of it."""
    rows: tuple[tuple[Setting, str], ...]
    """Setting and key of every row that it is about."""

    @property
    def number(self) -> Printed:
        """The number as printed."""
        return Printed(self.printed)


@cache
def claims() -> dict[str, Claim]:
    """Every claim, by name."""
    return {name: _claim(name, entry) for name, entry in toml("claims.toml").items()}


def _claim(name: str, entry: Mapping[str, Any]) -> Claim:
    return Claim(
        name=name,
        label=entry["label"],
        says=entry["says"],
        printed=entry["printed"],
        unit=entry.get("unit", 1.0),
        quantity=Quantity(entry["quantity"]),
        study=entry["study"],
        of=tuple(entry["of"]),
        how=entry["how"],
        rows=tuple(dict.fromkeys(_rows(entry))),
    )


def _rows(entry: Mapping[str, Any]) -> list[tuple[Setting, str]]:
    listed = entry["rows"]
    if not isinstance(listed, str):
        return [(setting_of(row, toml("sets.toml")), row.get("key", "")) for row in listed]
    wanted = {name: entry.get(name) for name in ("keys", "models", "sets")}
    return [
        (row.setting, row.key if wanted["keys"] else "")
        for table in tables()
        if table.label == listed
        for row in table.rows
        if (wanted["keys"] is None or row.key in wanted["keys"])
        and (wanted["models"] is None or row.setting.model in wanted["models"])
        and (wanted["sets"] is None or row.setting.evaluation_set in wanted["sets"])
    ]
