"""Statistics that know their value and their replicates under resampling counts.

Shapes: N records, B resamples; counts_BN says how often a record is in a resample.
"""

from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray


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

    def replicates(self, counts_BN: NDArray[np.float64]) -> NDArray[np.float64]:
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


class Ratio:
    """Σ numerator / Σ denominator, both re-summed in every resample (Appendix E.2: "the denominator varies").

    With indicator columns it is a share; with per-question sums of tokens it is the question-cluster estimate
    of Appendix E.8.

    >>> Ratio([1, 0, 1, 0], [1, 1, 1, 0]).value()
    0.6666666666666666
    >>> Ratio([0, 0], [0, 0]).value() is None
    True
    """

    resamples = True

    def __init__(self, numerator: ArrayLike, denominator: ArrayLike) -> None:
        self.numerator = column(numerator)
        self.denominator = column(denominator)
        if self.numerator.shape != self.denominator.shape:
            raise ValueError("numerator and denominator have different lengths")

    @property
    def size(self) -> int:
        """Number of records."""
        return self.numerator.size

    def value(self) -> float | None:
        """The ratio of the sums; None where the denominators sum to zero."""
        below = float(self.denominator.sum())
        return float(self.numerator.sum()) / below if below else None

    def replicates(self, counts_BN: NDArray[np.float64]) -> NDArray[np.float64]:
        """The ratio of the resampled sums; NaN where the denominator is zero."""
        above = counts_BN @ self.numerator
        below = counts_BN @ self.denominator
        return np.divide(above, below, out=np.full_like(above, np.nan), where=below != 0)


class Mean(Ratio):
    """The mean of one value per record.

    >>> Mean([1.0, 2.0, 6.0]).value()
    3.0
    """

    def __init__(self, values: ArrayLike) -> None:
        array = column(values)
        super().__init__(array, np.ones_like(array))

    def value(self) -> float | None:
        """The mean; None for no records."""
        return float(self.numerator.mean()) if self.size else None


class Quantile:
    """A linearly interpolated quantile, as `numpy.quantile` computes it.

    >>> Quantile([1.0, 2.0, 3.0, 4.0], 0.5).value()
    2.5
    """

    resamples = True

    def __init__(self, values: ArrayLike, probability: float) -> None:
        self.sorted = np.sort(column(values))
        self.order = np.argsort(column(values), kind="stable")
        self.probability = probability

    @property
    def size(self) -> int:
        """Number of records."""
        return self.sorted.size

    def value(self) -> float | None:
        """The quantile; None for no records."""
        return float(np.quantile(self.sorted, self.probability)) if self.size else None

    def replicates(self, counts_BN: NDArray[np.float64]) -> NDArray[np.float64]:
        """The quantile of each resample, read from the cumulative counts of the sorted values."""
        drawn_BN = counts_BN[:, self.order].cumsum(axis=1)
        position = self.probability * (self.size - 1)
        below = int(np.floor(position))
        lower = self.sorted[(drawn_BN > below).argmax(axis=1)]
        upper = self.sorted[(drawn_BN > min(below + 1, self.size - 1)).argmax(axis=1)]
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

    def replicates(self, counts_BN: NDArray[np.float64]) -> NDArray[np.float64]:
        """Not defined."""
        return np.full(len(counts_BN), np.nan)
