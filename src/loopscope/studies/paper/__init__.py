"""The published numbers, each as printed, as a quantity, and with the setting it belongs to.

They are read from the TOML files in this folder, once per process.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

FOLDER = files("loopscope.studies.paper")
_NUMBER = r"[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_PRINTED = re.compile(rf"({_NUMBER})(?: \[({_NUMBER}),({_NUMBER})\])?")
# Counts and choices: of the same questions under the same protocol, another one is a difference.
EXACT = frozenset({"questions", "positions", "checks", "conditions", "batches", "depths", "choice"})
PRINTED = frozenset({"share", "rank"})  # only the printed digits count
MEASURED = frozenset({"nats", "steps", "ratio", "part"})
AT_MOST = " at most"  # how names of errors of computing end, of which the paper prints the largest


@cache
def toml(*parts: str) -> dict[str, Any]:
    """A file of this folder."""
    return tomllib.loads(FOLDER.joinpath(*parts).read_text(encoding="utf-8"))


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
        return Decimal(5).scaleb(int(self.decimal.as_tuple().exponent) - 1)

    def agrees(self, value: float | Decimal) -> bool:
        """Whether `value`, in the printed unit, rounds to this (either way at an exact half).

        >>> Printed("40.24").agrees(429 / 1066 * 100), Printed("40.24").agrees(40.2451)
        (True, False)
        """
        # Binary arithmetic on the caller's side may be off by a few units in its sixteenth digit.
        slack = Decimal(1).scaleb(-14) * max(abs(self.decimal), Decimal(1))
        return abs(Decimal(value) - self.decimal) <= self.half_unit + slack

    def write(self, number: float) -> str:
        """Another number with the same digits.

        >>> Printed("1.747e-5").write(2e-5), Printed("+3.10").write(0.126)
        ('2.000e-05', '+0.13')
        """
        mantissa, exponent, _ = self.text.partition("e")
        sign = "+" if mantissa.startswith("+") else ""
        return f"{number:{sign}.{len(mantissa.partition('.')[2])}{'e' if exponent else 'f'}}"


@dataclass(frozen=True)
class Setting:
    """What was measured: the part that a run must share before its numbers can be called a reproduction.

    Attributes:
        measurement: the paper's own word for it.
        model: by the paper's name.
        task: the evaluation set's, as `split` and `subset`.
        kind: `solution` or `options`.
        n: questions.
        transition: of the update.
        states: their dtype.
        readout: its dtype.
        batch: questions in a batch; None where the paper does not say.
        initial_state: the rule by which H_0 is drawn; None where the model draws none, or the paper does not say how.
        data_sha256: the hash of the split's rows, as a run's manifest records it.
        unpublished: settings of the measurement that the paper does not give, so that no run can be known to share
            them.
        caveat: what cannot be checked even in the same setting.
    """

    measurement: str
    model: str
    task: str
    split: str
    subset: str | None
    kind: str
    n: int
    transition: int | None
    states: str
    readout: str
    batch: int | None = None
    initial_state: str | None = None
    data_sha256: str = ""
    unpublished: str = ""
    caveat: str = ""

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
    """One of the paper's models.

    Attributes:
        name: bare name of the published checkpoint.
        family: its family.
        depths: where the complete utility sweep evaluates it.
        draws_initial_state: whether H_0 is drawn.
        revision: the commit of the published weights.
    """

    name: str
    family: str
    depths: tuple[int, ...]
    draws_initial_state: bool = False
    revision: str = ""


@dataclass(frozen=True)
class PaperCell:
    """One cell of one table, or one number of the text.

    Attributes:
        label: LaTeX label of the table or section.
        study: the study that computes it.
        setting: what was measured.
        key: the row within a condition: a population, a signal, an action; empty where there is one row.
        column: its name; of a claim what the text says.
        text: as printed, intervals included: `49.18 [44.29,54.10]`, `1.747e-5`, `4->5` or `---`.
        unit: the quantity is the printed number times this.
        quantity: a name of quantities.toml.
        without: why loopscope has no such number, where it has none.
        relation: `above` or `below` where the text bounds the value; empty where it gives it.
    """

    label: str
    study: str
    setting: Setting
    key: str
    column: str
    text: str
    unit: float
    quantity: str
    without: str = ""
    relation: str = ""

    @cached_property
    def printed(self) -> Printed | None:
        """The number; None for a cell that is not one."""
        match = _PRINTED.fullmatch(self.text)
        return Printed(match[1]) if match else None

    @property
    def value(self) -> float | None:
        """The quantity in natural units: nats, fractions, counts."""
        return None if self.printed is None else float(self.printed.decimal) * self.unit

    @property
    def range(self) -> tuple[float, float] | None:
        """The printed interval in natural units, or whatever rounds to the printed number; None for text."""
        match = _PRINTED.fullmatch(self.text)
        if match is None or self.printed is None:
            return None
        half = self.printed.half_unit
        low, high = match.groups()[1:] if match[2] else (self.printed.decimal - half, self.printed.decimal + half)
        return float(low) * self.unit, float(high) * self.unit


@dataclass(frozen=True)
class PaperRow:
    """One row: its setting and its cells by column."""

    setting: Setting
    key: str
    cells: Mapping[str, PaperCell]


@dataclass(frozen=True)
class PaperTable:
    """One table, or the numbers of one study that a section of the text gives."""

    label: str
    study: str
    title: str
    rows: tuple[PaperRow, ...]


@dataclass(frozen=True)
class Claim:
    """What the running text says of one or several rows.

    Attributes:
        cell: the number; its setting is that of the first row.
        of: what is taken of each row.
        how: what is made of it.
        rows: setting and key of every row that it is about.
        of_verification: whether the value is that of a second computation, as `verify --bitwise` stores it.
    """

    cell: PaperCell
    of: tuple[str, ...]
    how: str
    rows: tuple[tuple[Setting, str], ...]
    of_verification: bool = False


@cache
def models() -> dict[str, PaperModel]:
    """The paper's models, by the paper's name."""
    return {
        name: PaperModel(**{**entry, "depths": tuple(entry["depths"])}) for name, entry in toml("models.toml").items()
    }


@cache
def model_names() -> dict[str, str]:
    """The paper's name of each of its models, by the bare name of the published checkpoint."""
    return {model.name: title for title, model in models().items()}


@cache
def set_titles() -> dict[str, str]:
    """How tables print the paper's evaluation sets, by `task/split` or `task/subset`."""
    return {name: entry["title"] for name, entry in toml("sets.toml").items()}


def templates() -> dict[str, str]:
    """The SHA-256 of each task's wording in the paper's protocol, by task."""
    return toml("templates.toml")


@cache
def data_hashes() -> dict[tuple[str, str], str]:
    """The hash of every split's rows, by task and split."""
    return {(entry["task"], entry["split"]): entry["data_sha256"] for entry in toml("sets.toml").values()}


@cache
def tables() -> tuple[PaperTable, ...]:
    """Every table of the paper, then what only its text gives; files in alphabetical order."""
    return tuple(
        _table(toml(folder, name))
        for folder in ("tables", "prose")
        for name in sorted(entry.name for entry in FOLDER.joinpath(folder).iterdir())
        if name.endswith(".toml")
    )


def cells(study: str | None = None) -> tuple[PaperCell, ...]:
    """All cells, or those of one study."""
    chosen = (table for table in tables() if study in (None, table.study))
    return tuple(cell for table in chosen for row in table.rows for cell in row.cells.values())


def _table(source: Mapping[str, Any]) -> PaperTable:
    label, study, columns = source["label"], source["study"], source["columns"]
    units, without = source.get("units", {}), source.get("without", {})
    rows = []
    for row in source["rows"]:
        setting, key = setting_of({**source, **row}), row.get("key", "")
        found = {}
        for column, text in ((column, text) for column, text in zip(columns, row["cells"], strict=True) if text):
            about = units.get(column, 1.0), toml("quantities.toml")[study][column], without.get(column, "")
            found[column] = PaperCell(label, study, setting, key, column, text, *about)
        rows.append(PaperRow(setting, key, found))
    return PaperTable(label, study, source["title"], tuple(rows))


def setting_of(row: Mapping[str, Any]) -> Setting:
    """The setting of a row that names measurement, model, set and (unless it is about depths) transition."""
    name, measurement = row["set"], toml("measurements.toml")[row["measurement"]]
    chosen = toml("sets.toml")[name]
    described = {**measurement, **measurement.get("of", {}).get(name, {})}
    drawn = models()[row["model"]].draws_initial_state
    caveats = [f"the rows of {chosen['subset']} are not published"] if "subset" in chosen else []
    caveats += [described["caveat"]] if drawn and "caveat" in described else []
    return Setting(
        measurement=row["measurement"],
        model=row["model"],
        **{field: chosen[field] for field in ("task", "split", "kind", "n", "data_sha256")},
        subset=chosen.get("subset"),
        transition=row.get("transition"),
        states="bfloat16",
        readout=row.get("readout", "float32"),
        batch=described.get("batch"),
        initial_state=described.get("initial_state", "paper") or None if drawn else None,
        unpublished=described.get("unpublished", ""),
        caveat="; ".join(caveats),
    )


@cache
def figure_settings(name: str) -> tuple[Setting, ...]:
    """The conditions that the paper's figure of that name shows, in its order; none where it does not say."""
    entry = toml("figures.toml").get(name)
    return tuple(setting for setting, _ in _claim_rows(entry)) if entry else ()


@cache
def claims() -> dict[str, Claim]:
    """Every claim of the text over one or several rows, by name."""
    found = {}
    for name, entry in toml("claims.toml").items():
        rows = tuple(dict.fromkeys(_claim_rows(entry)))
        about = entry["label"], entry["study"], replace(rows[0][0], measurement=""), "", entry["says"], entry["printed"]
        cell = PaperCell(*about, entry.get("unit", 1.0), entry["quantity"], relation=entry.get("relation", ""))
        found[name] = Claim(cell, tuple(entry["of"]), entry["how"], rows, entry.get("of_verification", False))
    return found


def _claim_rows(entry: Mapping[str, Any]) -> list[tuple[Setting, str]]:
    """The rows of a table, some of them by `keys`, `models` or `sets`; or rows of its own."""
    listed = entry["rows"]
    if not isinstance(listed, str):
        return [(setting_of(row), row.get("key", "")) for row in listed]
    return [
        (row.setting, row.key if "keys" in entry else "")
        for table in tables()
        if table.label == listed
        for row in table.rows
        if row.key in entry.get("keys", [row.key])
        and row.setting.model in entry.get("models", [row.setting.model])
        and row.setting.evaluation_set in entry.get("sets", [row.setting.evaluation_set])
    ]
