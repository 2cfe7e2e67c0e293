"""How LoopFormer spends its time: the sizes of its steps, chosen in a specification.

loopformer-3block-8iterations                               eight steps of 1/8; depth t is the first t of them
loopformer-3block-8iterations:budget=4                      four steps of 1/4
loopformer-3block-8iterations:schedule=1/2+1/4+1/8+1/8      these
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from loopscope.errors import LoopscopeError, shown

TRAINED_STEPS = 8
MOST_STEPS = 1000
"""Of a schedule or a budget; a hundred times what was trained."""


@dataclass(frozen=True)
class Schedule:
    """The sizes of the steps; they were trained to sum to 1. Beyond the end the last size goes on."""

    sizes: tuple[float, ...] = (1 / TRAINED_STEPS,) * TRAINED_STEPS

    @classmethod
    def chosen(cls, given: Mapping[str, str]) -> Schedule:
        """From the choices `budget=M` or `schedule=1/2+1/4+1/8+1/8`; eight steps of 1/8 without either."""
        if "budget" in given and "schedule" in given:
            raise LoopscopeError("budget and schedule both name the steps: give one of them")
        if "budget" in given:
            count = given["budget"]
            if not (count.isascii() and count.isdecimal() and len(count) < 9 and 1 <= int(count) <= MOST_STEPS):
                raise LoopscopeError(f"budget={count} is not a number of steps from 1 to {MOST_STEPS}")
            return cls((1 / int(count),) * int(count))
        if "schedule" in given:
            return cls(_sizes(given["schedule"]))
        return cls()

    def size(self, depth: int) -> float:
        """δ of the step after `depth` others."""
        return self.sizes[min(depth, len(self.sizes) - 1)]

    @property
    def within(self) -> int:
        """Steps until the clock passes 1."""
        ends = [sum(self.sizes[: count + 1]) for count in range(len(self.sizes))]
        return sum(end <= 1 + 1e-6 for end in ends)


def _sizes(text: str) -> tuple[float, ...]:
    """The step sizes of `1/2+1/4+0.25`."""
    parts = text.split("+")
    if len(parts) > MOST_STEPS:
        raise LoopscopeError(f"schedule= names {len(parts)} steps, more than the {MOST_STEPS} allowed")
    sizes = []
    for part in parts:
        try:
            size = float(Fraction(part)) if len(part) <= 20 else math.nan
        except (ValueError, ZeroDivisionError):
            size = math.nan
        if not 0 < size <= 1:
            raise LoopscopeError(f"schedule: {shown(part)} is no step above 0 and up to 1: write e.g. 1/2+1/4+1/8+1/8")
        sizes.append(size)
    return tuple(sizes)
