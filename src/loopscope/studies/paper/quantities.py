"""What a published number is: its unit, and what a run's own number must do to reproduce it.

Counts must be the same, shares and ranks round to the printed digits, errors of computing be no larger than printed, or
than the rounding of float64 sums. A measured value rounds to the printed digits, or lies as near as the dtype of the
states lets two measurements of it be.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from loopscope.studies.paper.printed import Printed, toml

EXACT = frozenset({"questions", "positions", "checks", "conditions", "batches", "depths", "choice"})
"""Counts and choices: of the same questions under the same protocol, another one is a difference."""
PRINTED = frozenset({"share", "rank"})
"""Only the printed digits count."""
MEASURED = frozenset({"nats", "steps", "ratio", "part"})
AT_MOST = " at most"

UNIT_ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}
"""How near two measurements of a value can be asked to be, relative to it, by the dtype of the states. In the paper the
mean regret of the same 315 predictions is 1.826e-5 and, measured anew, 1.831e-5: 0.27% apart, and 2⁻⁸ is 0.39%."""
SUMMED = 2.0**-48
"""What float64 sums of some hundred terms of a few nats owe to the order of adding: no error below it counts."""
WORDS = {
    **{"share": "percentage points", "part": "percentage points"},
    **{"rank": "of a rank statistic", "ratio": "of a ratio", "steps": "of a step", "choice": "of a step"},
}


@dataclass(frozen=True)
class Quantity:
    """What a column holds: one of the names above, of errors with `at most`."""

    name: str

    def __post_init__(self) -> None:
        if not self.is_error and self.name not in EXACT | PRINTED | MEASURED:
            raise ValueError(f"no quantity {self.name!r}")

    @property
    def is_error(self) -> bool:
        """Whether it is an error of computing, of which the paper prints the largest."""
        return self.name.endswith(AT_MOST)

    @property
    def counted(self) -> bool:
        """Whether it follows from counts alone: a count, or a share of counts."""
        return self.name in EXACT or self.name == "share"

    def reproduces(self, printed: Printed, unit: float, value: float, states: str) -> bool:
        """Whether a run's own value reproduces the printed number.

        >>> Quantity("nats").reproduces(Printed("1.826e-5"), 1.0, 1.831e-5, "bfloat16")
        True
        >>> Quantity("questions").reproduces(Printed("431"), 1.0, 429, "bfloat16")
        False
        """
        target = float(printed.decimal) * unit
        if self.name in EXACT:
            return abs(value - target) <= 1e-12 * max(abs(target), 1.0)
        rounds = printed.agrees(value / unit)
        if self.is_error:
            return rounds or abs(value) <= max(abs(target), SUMMED)
        near = UNIT_ROUNDOFF.get(states, 0.0) * abs(target) if self.name in MEASURED else 0.0
        return rounds or abs(value - target) <= near

    def difference(self, difference: float) -> str:
        """A difference with its unit.

        >>> Quantity("questions").difference(-2.0), Quantity("share").difference(0.0123)
        ('-2 questions', '+1.23 percentage points')
        """
        name = self.name.removesuffix(AT_MOST)
        if name in EXACT and name != "choice":
            return f"{difference:+.0f} {name}"
        percent = 100.0 if name in ("share", "part") else 1.0
        return f"{percent * difference:+.3g} {WORDS.get(name, name)}"


@cache
def quantities() -> dict[tuple[str, str], Quantity]:
    """By study and column."""
    return {
        (study, column): Quantity(name)
        for study, columns in toml("quantities.toml").items()
        for column, name in columns.items()
    }
