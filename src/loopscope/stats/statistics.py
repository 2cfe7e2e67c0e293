"""Statistics that know their value and their replicates under resampling counts.

A `Block` holds the counts of some resamples and the midranks of every column in each of them, computed once for all
statistics. With records sorted by value, the midrank of a record in a resample is (records drawn below) +
(records drawn at the same value + 1) / 2, which is a cumulative sum of counts: no resample is ever sorted.

Shapes: N records, B resamples, K summed columns, G groups of equal values.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Ranked(NamedTuple):
    """A column's midranks in a block of resamples, centred at (n + 1)/2."""

    rank_BN: NDArray[np.float64]
    weighted_BN: NDArray[np.float64]
    """Ranks times counts."""
    squares_B: NDArray[np.float64]
    """Σ count · rank²."""


class Column:
    """One value per record, with the ascending groups of equal values."""

    def __init__(self, values: NDArray[np.float64]) -> None:
        self.values = values

    @cached_property
    def order(self) -> NDArray[np.intp]:
        """Records by ascending value."""
        return np.argsort(self.values, kind="stable")

    @cached_property
    def first(self) -> NDArray[np.bool_]:
        """Whether a record is the first of its group, in ascending order."""
        ascending = self.values[self.order]
        first = np.ones(ascending.size, dtype=bool)
        first[1:] = ascending[1:] != ascending[:-1]
        return first

    @cached_property
    def group(self) -> NDArray[np.intp]:
        """The group of every record."""
        groups = np.empty(self.values.size, dtype=np.intp)
        groups[self.order] = np.cumsum(self.first) - 1
        return groups


@dataclass
class Block:
    """Some resamples: how often each record was drawn, and the ranks asked for so far."""

    counts_BN: NDArray[np.float64]

    def __post_init__(self) -> None:
        # Entries keep their column, and with it the array, alive: an identity cannot be taken over by another.
        self._ranked: dict[int, tuple[Column, Ranked]] = {}
        self._cumulative: dict[int, tuple[Column, NDArray[np.float64]]] = {}

    def cumulative(self, column: Column) -> NDArray[np.float64]:
        """How many records were drawn up to each one in ascending order of the column: [B, N]."""
        key = id(column.values)
        if key not in self._cumulative:
            drawn_BN = np.cumsum(np.take(self.counts_BN, column.order, axis=1), axis=1)
            self._cumulative[key] = (column, drawn_BN)
        return self._cumulative[key][1]

    def ranked(self, column: Column) -> Ranked:
        """The midranks of a column; columns over the same array share them."""
        key = id(column.values)
        if key not in self._ranked:
            self._ranked[key] = (column, self._rank(column))
        return self._ranked[key][1]

    def _rank(self, column: Column) -> Ranked:
        sorted_BN = np.take(self.counts_BN, column.order, axis=1)
        starts = np.flatnonzero(column.first)
        totals_BG = np.add.reduceat(sorted_BN, starts, axis=1) if starts.size < column.first.size else sorted_BN
        ranks_BG = np.cumsum(totals_BG, axis=1)
        # Below + (here + 1)/2 - (n + 1)/2, with below = cumulative - here.
        totals_BG *= 0.5
        ranks_BG -= totals_BG
        ranks_BG -= self.counts_BN.shape[1] / 2
        rank_BN = np.take(ranks_BG, column.group, axis=1)
        weighted_BN = self.counts_BN * rank_BN
        return Ranked(rank_BN, weighted_BN, np.einsum("bn,bn->b", weighted_BN, rank_BN))


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
        raise ValueError(f"expected one value per record, got shape {array.shape}")
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
    def value(self) -> float | None:
        """On the records themselves; None where they do not define it."""

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


class Difference(OfSums):
    """The second statistic less the first, both of the same records: every resample gives both (a paired difference).

    >>> Difference(Mean([1.0, 2.0]), Mean([1.5, 3.5])).value()
    1.0
    """

    def __init__(self, first: OfSums, second: OfSums) -> None:
        if first.size != second.size:
            raise ValueError(f"{first.size} and {second.size} records cannot be paired")
        self.first, self.second = first, second

    @property
    def columns(self) -> tuple[NDArray[np.float64], ...]:
        """Those of the first, then those of the second."""
        return *self.first.columns, *self.second.columns

    def value(self) -> float | None:
        """None where one of them has no value."""
        first, second = self.first.value(), self.second.value()
        return None if first is None or second is None else second - first

    def combine(self, sums_BK: NDArray[np.float64]) -> NDArray[np.float64]:
        """NaN where a resample leaves one of them undefined."""
        width = len(self.first.columns)
        return self.second.combine(sums_BK[:, width:]) - self.first.combine(sums_BK[:, :width])


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
