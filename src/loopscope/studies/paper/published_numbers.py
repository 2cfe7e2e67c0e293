"""The published numbers, each as printed, as a quantity, and with the setting it belongs to.

They are read from the TOML files beside this module, once per process.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Any

_NUMBER = r"[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_PRINTED = re.compile(rf"({_NUMBER})(?: \[({_NUMBER}),({_NUMBER})\])?")
_TEXT = re.compile(r"\d+->\d+|---")


@dataclass(frozen=True)
class Printed:
    """A decimal exactly as the paper prints it."""

    text: str

    @property
    def decimal(self) -> Decimal:
        """The printed number, without rounding."""
        return Decimal(self.text)

    @property
    def half_unit(self) -> Decimal:
        """Half a unit of the last printed place: how far the unrounded number can lie from it.

        >>> Printed("49.18").half_unit, Printed("1.747e-5").half_unit, Printed("179").half_unit
        (Decimal('0.005'), Decimal('5E-9'), Decimal('0.5'))
        """
        exponent = self.decimal.as_tuple().exponent
        if not isinstance(exponent, int):
            raise ValueError(f"{self.text} is not a number")
        return Decimal(5).scaleb(exponent - 1)

    def agrees(self, value: float | Decimal) -> bool:
        """Whether `value`, in the printed unit, rounds to this (either way at an exact half).

        >>> Printed("40.24").agrees(429 / 1066 * 100), Printed("40.24").agrees(40.2451)
        (True, False)
        """
        # Binary arithmetic on the caller's side may be off by a few units in its sixteenth digit.
        slack = Decimal(1).scaleb(-14) * max(abs(self.decimal), Decimal(1))
        return abs(Decimal(value) - self.decimal) <= self.half_unit + slack


@dataclass(frozen=True)
class Setting:
    """What was measured: the part that a run must share before its numbers can be called a reproduction."""

    measurement: str
    model: str
    task: str
    split: str
    subset: str | None
    kind: str
    """`solution` or `options`."""
    n: int
    transition: int | None
    states: str
    readout: str

    @property
    def evaluation_set(self) -> str:
        """Task with split or subset, such as `gsm8k/train256`."""
        return f"{self.task}/{self.subset or self.split}"


@dataclass(frozen=True)
class PaperModel:
    """One of the paper's models."""

    name: str
    """Bare name of the published checkpoint."""
    family: str
    depths: tuple[int, ...]
    """Where the complete utility sweep evaluates it."""


@dataclass(frozen=True)
class PaperCell:
    """One cell of one table, or one number of the text."""

    label: str
    """LaTeX label of the table or section."""
    study: str
    """The study that computes it."""
    setting: Setting
    key: str
    """The row within a condition: a population, a signal, an action; empty where there is one row."""
    column: str
    printed: Printed | None
    """None for a cell that is not a number."""
    text: str
    """The cell as printed, intervals included."""
    unit: float
    """The quantity is the printed number times this."""
    interval: tuple[Printed, Printed] | None = None

    @property
    def value(self) -> float | None:
        """The quantity in natural units: nats, fractions, counts."""
        return None if self.printed is None else float(self.printed.decimal) * self.unit

    @property
    def half_unit(self) -> float:
        """Half a unit of the last printed place, in natural units."""
        return 0.0 if self.printed is None else float(self.printed.half_unit) * self.unit

    @property
    def numbers(self) -> int:
        """How many printed numbers the cell holds."""
        return 1 + (2 if self.interval else 0)


@dataclass(frozen=True)
class PaperRow:
    """One row: its setting and its cells by column."""

    setting: Setting
    key: str
    cells: Mapping[str, PaperCell]

    def decimal(self, column: str) -> Decimal:
        """The printed number of one column."""
        printed = self.cells[column].printed
        if printed is None:
            raise KeyError(f"{column} is not a number here")
        return printed.decimal


@dataclass(frozen=True)
class Claim:
    """A number of the running text that the tables imply."""

    label: str
    """LaTeX label of the section."""
    printed: str


@dataclass(frozen=True)
class PaperTable:
    """One table, or the numbers of one study that a section of the text gives."""

    label: str
    study: str
    title: str
    rows: tuple[PaperRow, ...]


def parse_cell(text: str, *, label: str, study: str, setting: Setting, key: str, column: str, unit: float) -> PaperCell:
    """A cell from its printed form: `49.18 [44.29,54.10]`, `1.747e-5`, `4->5` or `---`."""
    match = _PRINTED.fullmatch(text)
    if match is None and not _TEXT.fullmatch(text):
        raise ValueError(f"{label}, {column}: cannot read the cell {text!r}")
    value, low, high = match.groups() if match else (None, None, None)
    interval = (Printed(low), Printed(high)) if low is not None and high is not None else None
    printed = Printed(value) if value is not None else None
    return PaperCell(label, study, setting, key, column, printed, text, unit, interval)


_HERE = files("loopscope.studies.paper")


def _toml(*parts: str) -> dict[str, Any]:
    return tomllib.loads(_HERE.joinpath(*parts).read_text(encoding="utf-8"))


@cache
def measurements() -> dict[str, str]:
    """The paper's separate measurements and what each of them is."""
    return {name: entry["about"] for name, entry in _toml("measurements.toml").items()}


@cache
def model_names() -> dict[str, str]:
    """The paper's name of each of its models, by the bare name of the published checkpoint."""
    return {model.name: title for title, model in models().items()}


@cache
def models() -> dict[str, PaperModel]:
    """The paper's models, by the paper's name."""
    return {
        title: PaperModel(entry["name"], entry["family"], tuple(entry["depths"]))
        for title, entry in _toml("models.toml").items()
    }


@cache
def set_titles() -> dict[str, str]:
    """How tables print the paper's evaluation sets, by `task/split` or `task/subset`."""
    return {name: entry["title"] for name, entry in _toml("sets.toml").items()}


@cache
def templates() -> dict[str, str]:
    """The SHA-256 of each task's wording in the paper's protocol, by task."""
    return {str(task): str(digest) for task, digest in _toml("templates.toml").items()}


@cache
def claims() -> dict[str, Claim]:
    """Totals, ranges and factors of the running text, by name."""
    return {name: Claim(**entry) for name, entry in _toml("claims.toml").items()}


@cache
def tables() -> tuple[PaperTable, ...]:
    """Every table of the paper, then what only its text gives; files in alphabetical order."""
    sets = _toml("sets.toml")
    return tuple(
        _table(_toml(folder, name), sets)
        for folder in ("tables", "prose")
        for name in sorted(entry.name for entry in _HERE.joinpath(folder).iterdir())
        if name.endswith(".toml")
    )


def cells(study: str | None = None) -> tuple[PaperCell, ...]:
    """All cells, or those of one study."""
    return tuple(
        cell for table in tables() if study in (None, table.study) for row in table.rows for cell in row.cells.values()
    )


def number_count() -> int:
    """How many published numbers are kept, the ends of intervals included."""
    return sum(cell.numbers for cell in cells())


def _table(source: dict[str, Any], sets: dict[str, Any]) -> PaperTable:
    rows = tuple(_row(source, row, sets) for row in source["rows"])
    return PaperTable(source["label"], source["study"], source["title"], rows)


def _row(source: dict[str, Any], row: dict[str, Any], sets: dict[str, Any]) -> PaperRow:
    label, columns, key = source["label"], source["columns"], row.get("key", "")
    evaluation_set = sets[row["set"]]
    measurement = row.get("measurement", source["measurement"])
    if measurement not in measurements():
        raise ValueError(f"{label}: no measurement {measurement!r}")
    if len(row["cells"]) != len(columns):
        raise ValueError(f"{label}: a row has {len(row['cells'])} cells for {len(columns)} columns")
    setting = Setting(
        measurement=measurement,
        model=row["model"],
        task=evaluation_set["task"],
        split=evaluation_set["split"],
        subset=evaluation_set.get("subset"),
        kind=evaluation_set["kind"],
        n=evaluation_set["n"],
        transition=row.get("transition"),
        states="bfloat16",
        readout=row.get("readout", source.get("readout", "float32")),
    )
    units = source.get("units", {})
    return PaperRow(
        setting,
        key,
        {
            column: parse_cell(
                text,
                label=label,
                study=source["study"],
                setting=setting,
                key=key,
                column=column,
                unit=units.get(column, 1.0),
            )
            for column, text in zip(columns, row["cells"], strict=True)
            if text
        },
    )
