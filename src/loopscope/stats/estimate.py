"""A number with its interval, and how bootstrap replicates become one (Section 4.1, 95% percentile intervals)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Interval:
    """A percentile interval from bootstrap replicates."""

    low: float
    high: float
    undefined: int = 0
    """Replicates in which the statistic had no value, such as a share of harmful updates without any."""

    def covers(self, value: float) -> bool:
        """Whether `value` lies in the closed interval.

        >>> Interval(1.0, 2.0).covers(2.0)
        True
        """
        return self.low <= value <= self.high

    def scaled(self, factor: float) -> "Interval":
        """The interval of `factor` times the quantity, ends in order.

        >>> Interval(1.0, 2.0).scaled(-1.0)
        Interval(low=-2.0, high=-1.0, undefined=0)
        """
        low, high = sorted((self.low * factor, self.high * factor))
        return Interval(low, high, self.undefined)


@dataclass(frozen=True)
class Estimate:
    """A statistic of a population of `n` records; `value` is None where the population does not define it."""

    value: float | None
    n: int
    interval: Interval | None = None
    """None where there is nothing to resample: fewer than two records, or no value."""

    def scaled(self, factor: float) -> "Estimate":
        """The estimate of `factor` times the quantity."""
        if self.value is None:
            return self
        return Estimate(self.value * factor, self.n, self.interval and self.interval.scaled(factor))


def percentile_interval(replicates: NDArray[np.float64], level: float) -> Interval | None:
    """The central `level` of the replicates, by linearly interpolated quantiles (the percentile bootstrap).

    Replicates that are NaN have no value and are left out and counted; None where none is left.

    >>> percentile_interval(np.arange(101.0), 0.5)
    Interval(low=25.0, high=75.0, undefined=0)
    """
    defined = replicates[~np.isnan(replicates)]
    if not defined.size:
        return None
    tail = (1 - level) / 2
    low, high = np.quantile(defined, [tail, 1 - tail])
    return Interval(float(low), float(high), int(replicates.size - defined.size))
