"""A number that was measured several times: the median, and how far the repeats lie apart."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """The median of some repeats with the smallest and the largest, in the unit of the row it belongs to."""

    value: float
    low: float
    high: float
    repeats: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Measured:
        """Of all repeats.

        >>> Measured.of([3.0, 1.0, 2.0])
        Measured(value=2.0, low=1.0, high=3.0, repeats=3)
        """
        return cls(statistics.median(values), min(values), max(values), len(values))

    def plus(self, other: Measured) -> Measured:
        """One after the other."""
        repeats = min(self.repeats, other.repeats)
        return Measured(self.value + other.value, self.low + other.low, self.high + other.high, repeats)


def over(a: float, b: float) -> float:
    """a/b; nothing over nothing is no difference.

    >>> over(1.0, 4.0), over(0.0, 0.0), over(1.0, 0.0)
    (0.25, 1.0, inf)
    """
    if b == 0.0:
        return 1.0 if a == 0.0 else math.inf
    return a / b


def finite(value: float) -> float | None:
    """For JSON, which knows no infinities."""
    return value if math.isfinite(value) else None
