"""The paper's own arithmetic: which of its numbers follow from their neighbours, and by how much they miss.

A check compares a printed number with what other printed numbers imply, allowing for the rounding of all of them.
Within one measurement it must hold. Across measurements of the same condition it need not: the paper computes
several paths anew and says so, and what differs is worth knowing when a run is compared with "the" paper's value.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from loopscope.studies.paper.numbers import PaperRow, PaperTable, Printed, claims, tables


class Scope(StrEnum):
    """What a check holds together."""

    TABLE = "one measurement"
    TEXT = "text and table"
    ACROSS = "two measurements"


@dataclass(frozen=True)
class Check:
    """One printed number against what its neighbours imply, both in the printed unit."""

    scope: Scope
    where: str
    """Table or section, row and column."""
    rule: str
    printed: str
    implied: Decimal
    allowed: Decimal
    """How far rounding alone can put the two apart."""

    @property
    def discrepancy(self) -> Decimal:
        """Printed minus implied."""
        return Decimal(self.printed) - self.implied

    @property
    def holds(self) -> bool:
        """Whether rounding explains the difference."""
        return abs(self.discrepancy) <= self.allowed

    def __str__(self) -> str:
        size = f"{float(self.discrepancy):+.4g}"
        return f"{self.where}: printed {self.printed}, {self.rule} gives {float(self.implied):.6g} ({size})"


@dataclass(frozen=True)
class Rounded:
    """A number known up to rounding, so that sums and quotients carry their own allowance."""

    value: Decimal
    error: Decimal = Decimal(0)

    @classmethod
    def of(cls, printed: str | Printed) -> "Rounded":
        """A printed decimal, off by at most half a unit of its last place; integers are exact counts."""
        number = printed if isinstance(printed, Printed) else Printed(printed)
        exact = number.decimal == number.decimal.to_integral_value() and "." not in number.text
        return cls(number.decimal, Decimal(0) if exact else number.half_unit)

    def __add__(self, other: "Rounded") -> "Rounded":
        return Rounded(self.value + other.value, self.error + other.error)

    def __sub__(self, other: "Rounded") -> "Rounded":
        return Rounded(self.value - other.value, self.error + other.error)

    def __mul__(self, other: "Rounded") -> "Rounded":
        error = abs(self.value) * other.error + abs(other.value) * self.error + self.error * other.error
        return Rounded(self.value * other.value, error)

    def __truediv__(self, other: "Rounded") -> "Rounded":
        quotient = self.value / other.value
        furthest = (abs(self.value) + self.error) / (abs(other.value) - other.error)
        return Rounded(quotient, furthest - abs(quotient))


def exactly(number: int) -> Rounded:
    """A count."""
    return Rounded(Decimal(number))


def follows(scope: Scope, where: str, rule: str, printed: str, implied: Rounded) -> Check:
    """A check that the printed number is the implied one, rounded."""
    own = Rounded.of(printed).error
    # Decimal division keeps 28 digits; the last of them must not decide an exact half.
    slack = Decimal(1).scaleb(-20) * max(abs(implied.value), Decimal(1))
    return Check(scope, where, rule, printed, implied.value, own + implied.error + slack)


def table(label: str) -> PaperTable:
    """All rows that carry one label, over however many files they are spread."""
    found = [entry for entry in tables() if entry.label == label]
    if not found:
        raise KeyError(label)
    return PaperTable(label, found[0].study, found[0].title, tuple(row for entry in found for row in entry.rows))


def row(label: str, model: str, evaluation_set: str, key: str | None = None) -> PaperRow:
    """The first row of a label with that model, evaluation set and (where given) key."""
    for candidate in table(label).rows:
        same = candidate.setting.model == model and candidate.setting.evaluation_set == evaluation_set
        if same and key in (None, candidate.key):
            return candidate
    raise KeyError((label, model, evaluation_set, key))


def number(entry: PaperRow, column: str) -> Rounded:
    """A cell with its rounding."""
    printed = entry.cells[column].printed
    if printed is None:
        raise KeyError(column)
    return Rounded.of(printed)


def text(entry: PaperRow, column: str) -> str:
    """A cell's number as printed."""
    printed = entry.cells[column].printed
    if printed is None:
        raise KeyError(column)
    return printed.text


def claim(name: str) -> str:
    """A number of the running text, as printed."""
    return claims()[name].printed


def name_of(entry: PaperRow, label: str, column: str) -> str:
    """Where a cell is, for a reader."""
    setting = entry.setting
    at = "" if setting.transition is None else f" {setting.transition}→{setting.transition + 1}"
    key = f" {entry.key}" if entry.key else ""
    return f"{label}, {setting.model} {setting.evaluation_set}{at}{key}, {column}"


def checks() -> tuple[Check, ...]:
    """Every check, tables first."""
    from paper_arithmetic import rules_across, rules_tables, rules_text

    return tuple(check for rules in (rules_tables, rules_text, rules_across) for check in rules.checks())


def discrepancies() -> Iterator[Check]:
    """The printed numbers that do not follow from their neighbours."""
    return (check for check in checks() if not check.holds)
