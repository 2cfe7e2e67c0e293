"""The published numbers, each as printed, as a quantity, and with the setting it belongs to.

They are read from the TOML files beside this module, once per process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any

from loopscope.studies.paper.printed import FOLDER, Printed, toml
from loopscope.studies.paper.quantities import Quantity, quantities

_NUMBER = r"[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_PRINTED = re.compile(rf"({_NUMBER})(?: \[({_NUMBER}),({_NUMBER})\])?")
_TEXT = re.compile(r"\d+->\d+|---")


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
    batch: int | None = None
    """Questions in a batch; None where the paper does not say."""
    initial_state: str | None = None
    """The rule by which H_0 is drawn; None where the model draws none, or the paper does not say how."""
    data_sha256: str = ""
    """The hash of the split's rows, as a run's manifest records it."""
    unpublished: str = ""
    """Settings of the measurement that the paper does not give, so that no run can be known to share them."""
    caveat: str = ""
    """What cannot be checked even in the same setting."""

    @property
    def title(self) -> str:
        """Model, evaluation set and update."""
        update = "" if self.transition is None else f" {self.transition}→{self.transition + 1}"
        return f"{self.model} {self.evaluation_set}{update}"

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
    draws_initial_state: bool = False


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
    quantity: Quantity
    without: str = ""
    """Why loopscope has no such number, where it has none."""
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
class PaperTable:
    """One table, or the numbers of one study that a section of the text gives."""

    label: str
    study: str
    title: str
    rows: tuple[PaperRow, ...]


def parse_cell(
    text: str,
    *,
    label: str,
    study: str,
    setting: Setting,
    key: str,
    column: str,
    unit: float,
    quantity: Quantity,
    without: str = "",
) -> PaperCell:
    """A cell from its printed form: `49.18 [44.29,54.10]`, `1.747e-5`, `4->5` or `---`."""
    match = _PRINTED.fullmatch(text)
    if match is None and not _TEXT.fullmatch(text):
        raise ValueError(f"{label}, {column}: cannot read the cell {text!r}")
    value, low, high = match.groups() if match else (None, None, None)
    interval = (Printed(low), Printed(high)) if low is not None and high is not None else None
    printed = Printed(value) if value is not None else None
    return PaperCell(label, study, setting, key, column, printed, text, unit, quantity, without, interval)


@cache
def measurements() -> dict[str, str]:
    """The paper's separate measurements and what each of them is."""
    return {name: entry["about"] for name, entry in toml("measurements.toml").items()}


@cache
def model_names() -> dict[str, str]:
    """The paper's name of each of its models, by the bare name of the published checkpoint."""
    return {model.name: title for title, model in models().items()}


@cache
def models() -> dict[str, PaperModel]:
    """The paper's models, by the paper's name."""
    return {
        title: PaperModel(
            entry["name"], entry["family"], tuple(entry["depths"]), entry.get("draws_initial_state", False)
        )
        for title, entry in toml("models.toml").items()
    }


@cache
def set_titles() -> dict[str, str]:
    """How tables print the paper's evaluation sets, by `task/split` or `task/subset`."""
    return {name: entry["title"] for name, entry in toml("sets.toml").items()}


@cache
def templates() -> dict[str, str]:
    """The SHA-256 of each task's wording in the paper's protocol, by task."""
    return {str(task): str(digest) for task, digest in toml("templates.toml").items()}


@cache
def data_hashes() -> dict[tuple[str, str], str]:
    """The hash of every split's rows, by task and split."""
    return {(entry["task"], entry["split"]): entry["data_sha256"] for entry in toml("sets.toml").values()}


@cache
def tables() -> tuple[PaperTable, ...]:
    """Every table of the paper, then what only its text gives; files in alphabetical order."""
    sets = toml("sets.toml")
    return tuple(
        _table(toml(folder, name), sets)
        for folder in ("tables", "prose")
        for name in sorted(entry.name for entry in FOLDER.joinpath(folder).iterdir())
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
    label, columns, study, key = source["label"], source["columns"], source["study"], row.get("key", "")
    if len(row["cells"]) != len(columns):
        raise ValueError(f"{label}: a row has {len(row['cells'])} cells for {len(columns)} columns")
    setting = setting_of({**source, **row}, sets)
    units, without = source.get("units", {}), source.get("without", {})
    return PaperRow(
        setting,
        key,
        {
            column: parse_cell(
                text,
                label=label,
                study=study,
                setting=setting,
                key=key,
                column=column,
                unit=units.get(column, 1.0),
                quantity=quantities()[study, column],
                without=without.get(column, ""),
            )
            for column, text in zip(columns, row["cells"], strict=True)
            if text
        },
    )


def setting_of(row: Mapping[str, Any], sets: Mapping[str, Any]) -> Setting:
    """The setting of a row that names measurement, model, set and (unless it is about depths) transition."""
    name, measurement = row["set"], toml("measurements.toml").get(row["measurement"])
    if measurement is None:
        raise ValueError(f"no measurement {row['measurement']!r}")
    chosen, own = sets[name], measurement.get("of", {}).get(name, {})
    described = {**measurement, **own}
    drawn = models()[row["model"]].draws_initial_state
    caveats = [f"the rows of {chosen['subset']} are not published"] if "subset" in chosen else []
    caveats += [described["caveat"]] if drawn and "caveat" in described else []
    return Setting(
        measurement=row["measurement"],
        model=row["model"],
        task=chosen["task"],
        split=chosen["split"],
        subset=chosen.get("subset"),
        kind=chosen["kind"],
        n=chosen["n"],
        transition=row.get("transition"),
        states="bfloat16",
        readout=row.get("readout", "float32"),
        batch=described.get("batch"),
        initial_state=described.get("initial_state", "paper") or None if drawn else None,
        data_sha256=chosen["data_sha256"],
        unpublished=described.get("unpublished", ""),
        caveat="; ".join(caveats),
    )
