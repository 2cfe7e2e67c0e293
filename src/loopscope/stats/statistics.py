"""Statistics that know their value and their replicates under resampling counts.

Shapes: N records, B resamples, K summed columns.
"""

from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loopscope.stats.resample import Block, Column


class Statistic(Protocol):
    """Something to bootstrap."""

    @property
    def size(self) -> int:
        """Number of records."""
        ...

    @property
    def resamples(self) -> bool:
        """Whether an interval of it means anything."""
        ...

    def value(self) -> float | None:
        """On the records themselves; None where they do not define it."""
        ...

    def replicates(self, block: Block) -> NDArray[np.float64]:
        """On each resample; NaN where it leaves the statistic undefined."""
        ...


def column(values: ArrayLike) -> NDArray[np.float64]:
    """`values` as one finite float64 per record."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"expected one value a record, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError("a statistic was given NaN or infinite values: leave such records out first")
    return array


class OfSums(ABC):
    """A statistic that follows from sums over records, so that many of them share one matrix product."""

    resamples = True

    @property
    @abstractmethod
    def columns(self) -> tuple[NDArray[np.float64], ...]:
        """What is summed, one value per record each."""

    @abstractmethod
    def combine(self, sums_BK: NDArray[np.float64]) -> NDArray[np.float64]:
        """The statistic of each resample from the resampled sums of its columns."""

    @property
    def size(self) -> int:
        """Number of records."""
        return self.columns[0].size

    def replicates(self, block: Block) -> NDArray[np.float64]:
        """On each resample."""
        return self.combine(block.counts_BN @ np.stack(self.columns, axis=1))


class Ratio(OfSums):
    """Σ numerator / Σ denominator, both re-summed in every resample (Appendix E.2: "the denominator varies").

    With indicator columns it is a share; with per-question sums of tokens it is the question-cluster estimate
    of Appendix E.8.

    >>> Ratio([1, 0, 1, 0], [1, 1, 1, 0]).value()
    0.6666666666666666
    >>> Ratio([0, 0], [0, 0]).value() is None
    True
    """

    def __init__(self, numerator: ArrayLike, denominator: ArrayLike) -> None:
        self.numerator = column(numerator)
        self.denominator = column(denominator)
        if self.numerator.shape != self.denominator.shape:
            raise ValueError("numerator and denominator have different lengths")

    @property
    def columns(self) -> tuple[NDArray[np.float64], ...]:
        """Numerator and denominator."""
        return self.numerator, self.denominator

    def value(self) -> float | None:
        """The ratio of the sums; None where the denominators sum to zero."""
        below = float(self.denominator.sum())
        return float(self.numerator.sum()) / below if below else None

    def combine(self, sums_BK: NDArray[np.float64]) -> NDArray[np.float64]:
        """The ratio of the resampled sums; NaN where the denominator is zero."""
        above, below = sums_BK.T
        ratio: NDArray[np.float64] = np.divide(above, below, out=np.full(len(above), np.nan), where=below != 0)
        return ratio


class Mean(OfSums):
    """The mean of one value per record.

    >>> Mean([1.0, 2.0, 6.0]).value()
    3.0
    """

    def __init__(self, values: ArrayLike) -> None:
        self.values = column(values)

    @property
    def columns(self) -> tuple[NDArray[np.float64], ...]:
        """The values."""
        return (self.values,)

    def value(self) -> float | None:
        """The mean; None for no records."""
        return float(self.values.mean()) if self.size else None

    def combine(self, sums_BK: NDArray[np.float64]) -> NDArray[np.float64]:
        """The resampled sum over the number of records, which every resample shares."""
        return sums_BK[:, 0] / self.size


class Quantile:
    """A linearly interpolated quantile, as `numpy.quantile` computes it.

    >>> Quantile([1.0, 2.0, 3.0, 4.0], 0.5).value()
    2.5
    """

    resamples = True

    def __init__(self, values: ArrayLike, probability: float) -> None:
        self.column = Column(column(values))
        self.probability = probability

    @property
    def size(self) -> int:
        """Number of records."""
        return self.column.values.size

    def value(self) -> float | None:
        """The quantile; None for no records."""
        return float(np.quantile(self.column.values, self.probability)) if self.size else None

    def replicates(self, block: Block) -> NDArray[np.float64]:
        """The quantile of each resample, read from the cumulative counts of the ascending values."""
        ascending = self.column.values[self.column.order]
        drawn_BN = block.cumulative(self.column)
        position = self.probability * (self.size - 1)
        below = int(np.floor(position))
        lower = ascending[(drawn_BN > below).argmax(axis=1)]
        upper = ascending[(drawn_BN > min(below + 1, self.size - 1)).argmax(axis=1)]
        between: NDArray[np.float64] = lower + (position - below) * (upper - lower)
        return between


class Maximum:
    """The largest value; the bootstrap does not apply to extremes, so it has no interval.

    >>> Maximum([1.0, 3.0]).value()
    3.0
    """

    resamples = False

    def __init__(self, values: ArrayLike) -> None:
        self.values = column(values)

    @property
    def size(self) -> int:
        """Number of records."""
        return self.values.size

    def value(self) -> float | None:
        """The maximum; None for no records."""
        return float(self.values.max()) if self.size else None

    def replicates(self, block: Block) -> NDArray[np.float64]:
        """Not defined."""
        return np.full(len(block.counts_BN), np.nan)
