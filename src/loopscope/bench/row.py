"""One line of the benchmark: what was measured, what it is held against, and what was aimed at."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from loopscope.bench.errors import Error
from loopscope.bench.measured import Measured, finite, over


@dataclass(frozen=True)
class Reference:
    """The same question answered another way, or the least that any answer costs.

    Attributes:
        name: a few words.
        measured: in the unit of the row.
        floor: whether this is a lower bound rather than an alternative.
    """

    name: str
    measured: Measured
    floor: bool = False

    def ratio(self, ours: Measured) -> float:
        """How many times the floor we take, or how many times less than the alternative."""
        if self.floor:
            return over(ours.value, self.measured.value)
        return over(self.measured.value, ours.value)


@dataclass(frozen=True)
class Goal:
    """What was aimed at, and what came out.

    Attributes:
        text: one line.
        bound: the number to stay under, or to reach.
        at_most: which of the two.
        measured: what came out.
        against: name of the reference that the number is a ratio to, if it is one.
        judged: False where the sizes are not those of the goal, so that nothing follows.
    """

    text: str
    bound: float
    at_most: bool
    measured: float
    against: str = ""
    judged: bool = True

    @property
    def met(self) -> bool | None:
        """Whether it was reached; None where that was not tried.

        >>> Goal("at most 1.4 times the products", 1.4, True, 1.5).met
        False
        >>> Goal("at least 8 times faster", 8, False, 9.0).met
        True
        """
        if not self.judged:
            return None
        return self.measured <= self.bound if self.at_most else self.measured >= self.bound


@dataclass(frozen=True)
class Row:
    """One line of the benchmark.

    Attributes:
        name: by which `--rows` asks for it, or that name with a variant after a colon.
        what: one sentence.
        size: the numbers that it was measured at.
        unit: of everything measured: "s", "MiB", or "" for a ratio.
        measured: loopscope's own.
        references: what it is held against.
        goals: what was aimed at.
        figures: further numbers by name.
        errors: accuracy, quantity by quantity.
    """

    name: str
    what: str
    size: dict[str, int]
    unit: str
    measured: Measured
    references: tuple[Reference, ...] = ()
    goals: tuple[Goal, ...] = ()
    figures: dict[str, float] = field(default_factory=dict)
    errors: tuple[Error, ...] = ()

    def ratio(self, name: str) -> float:
        """To the reference of that name."""
        return next(reference.ratio(self.measured) for reference in self.references if reference.name == name)

    def per_thousand(self, measured: Measured) -> float | None:
        """Of seconds, those for 1000 tokens."""
        tokens = self.size.get("tokens")
        return measured.value * 1000.0 / tokens if tokens and self.unit == "s" else None

    def as_json(self) -> dict[str, Any]:
        """Plain numbers and text."""
        return {
            "name": self.name,
            "what": self.what,
            "size": self.size,
            "unit": self.unit,
            "measured": self._measured(self.measured),
            "references": [self._reference(one) for one in self.references],
            "goals": [asdict(goal) | {"measured": finite(goal.measured), "met": goal.met} for goal in self.goals],
            "figures": self.figures,
            "errors": [_error(error) for error in self.errors],
        }

    def _reference(self, one: Reference) -> dict[str, Any]:
        ratio = finite(one.ratio(self.measured))
        return {"name": one.name, "floor": one.floor, "ratio": ratio} | self._measured(one.measured)

    def _measured(self, measured: Measured) -> dict[str, Any]:
        each = self.per_thousand(measured)
        return asdict(measured) | ({} if each is None else {"per_1000_tokens": each})


def at_most(text: str, bound: float, measured: float, *, judged: bool, against: str = "") -> Goal:
    """A goal to stay under."""
    return Goal(text, bound, True, measured, against, judged)


def at_least(text: str, bound: float, measured: float, *, judged: bool, against: str = "") -> Goal:
    """A goal to reach."""
    return Goal(text, bound, False, measured, against, judged)


def _error(error: Error) -> dict[str, Any]:
    ratios = {"rms_ratio": error.rms_ratio, "low": error.low, "high": error.high, "max_ratio": error.max_ratio}
    return asdict(error) | {name: finite(value) for name, value in ratios.items()}
