"""Paired question bootstrap: whole question records are resampled, and every statistic sees the same resamples.

Section 4.1 and Appendix E.2: 2000 resamples, seed 20260904, 95% percentile intervals. Replicate b of a statistic is
its value on n records drawn with replacement. A draw is held as counts, c_BN[b, i] = how often record i was
drawn, so that means and ratios are matrix products and ranks are cumulative sums. Counts come in blocks, so
memory is bounded whatever n is; the stream of draws does not depend on the block size and is the one that
`scipy.stats.bootstrap` makes from `numpy.random.default_rng(seed)`.

Records that belong to a question, such as its tokens, stay together (Appendix E.8): only sums per question enter a
ratio of sums, so tokens are summed once and the questions are resampled (`Ratio.by_cluster`).

A statistic knows its value and its replicates under counts. A `Block` holds the counts of some resamples and the
midranks of every column in each of them, computed once for all statistics. With records sorted by value, the midrank of
a record in a resample is (records drawn below) + (records drawn at the same value + 1) / 2, which is a cumulative sum
of counts: no resample is ever sorted.

Shapes: B resamples of a block, N records, K summed columns, G groups of equal values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loopscope.errors import LARGEST_SEED, LoopscopeError, setting, whole

Key = TypeVar("Key")
Floats: TypeAlias = NDArray[np.float64]
SEED = 20260904
RESAMPLES = 2000
LEVEL = 0.95
MOST_RESAMPLES = 10_000_000
# Counts are float64 because they enter matrix products. A hundred thousand of them are 0.8 MB: with the ranks that rank
# statistics keep for a block (of the same size each) they stay in the cache.
BLOCK_ELEMENTS = 100_000


class Column:
    """One value per record, with the ascending groups of equal values."""

    def __init__(self, values: Floats) -> None:
        self.values = values
        self.order = np.argsort(values, kind="stable")
        self.group = np.unique(values, return_inverse=True)[1]
        self.first = np.diff(self.group[self.order], prepend=-1) > 0


class Ranked(NamedTuple):
    """A column's midranks in a block of resamples, centred at (n + 1)/2; they times counts; Σ count · rank²."""

    rank_BN: Floats
    weighted_BN: Floats
    squares_B: Floats


class Block:
    """Some resamples: how often each record was drawn, and the ranks that were needed so far."""

    def __init__(self, counts_BN: Floats) -> None:
        self.counts_BN = counts_BN
        # By the place of a column's array in memory: statistics of one array share its ranks.
        self._cumulative: dict[int, Floats] = {}
        self._ranked: dict[int, Ranked] = {}

    def cumulative(self, column: Column) -> Floats:
        """How many records were drawn up to each one in ascending order of the column: [B, N]."""
        if id(column.values) not in self._cumulative:
            ascending_BN = np.take(self.counts_BN, column.order, axis=1)
            self._cumulative[id(column.values)] = np.cumsum(ascending_BN, axis=1)
        return self._cumulative[id(column.values)]

    def ranked(self, column: Column) -> Ranked:
        """The midranks of a column."""
        if id(column.values) not in self._ranked:
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
            self._ranked[id(column.values)] = Ranked(rank_BN, weighted_BN, np.einsum("bn,bn->b", weighted_BN, rank_BN))
        return self._ranked[id(column.values)]


class Statistic(ABC):
    """Something to bootstrap, from columns of one finite number per record."""

    def __init__(self, *columns: ArrayLike) -> None:
        self.columns = tuple(np.asarray(values, dtype=np.float64) for values in columns)
        for values in self.columns:
            if not np.isfinite(values).all():
                raise ValueError("a statistic was given NaN or infinite values: leave such records out first")

    @property
    def size(self) -> int:
        """Number of records."""
        return self.columns[0].size

    def value(self) -> float | None:
        """On the records themselves; None where they do not define it."""
        found = self.replicates(Block(np.ones((1, self.size))))[0] if self.size else np.nan
        return None if np.isnan(found) else float(found)

    @abstractmethod
    def replicates(self, block: Block) -> Floats:
        """On each resample; NaN where it leaves the statistic undefined."""


def _quotient(above_B: Floats, below_B: Floats) -> Floats:
    """NaN where the denominator is zero."""
    quotient: Floats = np.divide(above_B, below_B, out=np.full(len(above_B), np.nan), where=below_B != 0)
    return quotient


class OfSums(Statistic):
    """A statistic that follows from sums of its columns, so that many of them share one matrix product."""

    @abstractmethod
    def combine(self, sums_BK: Floats) -> Floats:
        """The statistic of each resample from the resampled sums of its columns."""

    def replicates(self, block: Block) -> Floats:
        return self.combine(block.counts_BN @ np.stack(self.columns, axis=1))


class Ratio(OfSums):
    """Σ numerator / Σ denominator, both re-summed in every resample (Appendix E.2: "the denominator varies").

    With indicator columns it is a share; with per-question sums of tokens it is the question-cluster estimate
    of Appendix E.8. None where the denominators sum to zero.

    >>> Ratio([1, 0, 1, 0], [1, 1, 1, 0]).value()
    0.6666666666666666
    >>> Ratio([0, 0], [0, 0]).value() is None
    True
    """

    def value(self) -> float | None:
        above, below = (float(values.sum()) for values in self.columns)
        return above / below if below else None

    def combine(self, sums_BK: Floats) -> Floats:
        return _quotient(*sums_BK.T)

    @classmethod
    def by_cluster(cls, cluster: ArrayLike, numerator: ArrayLike, denominator: ArrayLike) -> Ratio:
        """Of records that are resampled together with the others of their cluster.

        >>> Ratio.by_cluster(["b", "a", "b"], [1.0, 2.0, 3.0], [1, 1, 1]).columns[0].tolist()
        [2.0, 4.0]
        """
        index = np.unique(np.asarray(cluster), return_inverse=True)[1]
        return cls(*(np.bincount(index, np.asarray(each, dtype=np.float64)) for each in (numerator, denominator)))


class Mean(OfSums):
    """The mean of one value per record; None for no records.

    >>> Mean([1.0, 2.0, 6.0]).value()
    3.0
    """

    def value(self) -> float | None:
        return float(self.columns[0].mean()) if self.size else None

    def combine(self, sums_BK: Floats) -> Floats:
        return sums_BK[:, 0] / self.size


class Best(OfSums):
    """The place whose column has the highest mean, the first of equals; None for no records.

    >>> Best([1, 2, 4], [[0.0, 1.0, 0.5], [0.0, 0.5, 1.0]]).value()
    2.0
    """

    def __init__(self, places: ArrayLike, values_NK: ArrayLike) -> None:
        super().__init__(*np.asarray(values_NK, dtype=np.float64).T.copy())
        self._places = np.asarray(places, dtype=np.float64)

    def value(self) -> float | None:
        return float(self._places[int(np.argmax([column.mean() for column in self.columns]))]) if self.size else None

    def combine(self, sums_BK: Floats) -> Floats:
        return np.asarray(self._places[np.argmax(sums_BK, axis=1)])


class Difference(OfSums):
    """The second statistic less the first, both of the same records: every resample gives both (a paired difference).

    >>> Difference(Mean([1.0, 2.0]), Mean([1.5, 3.5])).value()
    1.0
    """

    def __init__(self, first: OfSums, second: OfSums) -> None:
        super().__init__(*first.columns, *second.columns)
        self.first, self.second = first, second

    def value(self) -> float | None:
        first, second = self.first.value(), self.second.value()
        return None if first is None or second is None else second - first

    def combine(self, sums_BK: Floats) -> Floats:
        width = len(self.first.columns)
        return self.second.combine(sums_BK[:, width:]) - self.first.combine(sums_BK[:, :width])


class Quantile(Statistic):
    """A linearly interpolated quantile, as `numpy.quantile` computes it; None for no records.

    >>> Quantile([1.0, 2.0, 3.0, 4.0], 0.5).value()
    2.5
    """

    def __init__(self, values: ArrayLike, probability: float) -> None:
        super().__init__(values)
        self.column, self.probability = Column(self.columns[0]), probability

    def value(self) -> float | None:
        return float(np.quantile(self.columns[0], self.probability)) if self.size else None

    def replicates(self, block: Block) -> Floats:
        """Read from the cumulative counts of the ascending values."""
        ascending = self.column.values[self.column.order]
        drawn_BN = block.cumulative(self.column)
        position = self.probability * (self.size - 1)
        below = int(np.floor(position))
        lower = ascending[(drawn_BN > below).argmax(axis=1)]
        upper = ascending[(drawn_BN > min(below + 1, self.size - 1)).argmax(axis=1)]
        return np.asarray(lower + (position - below) * (upper - lower))


class Spearman(Statistic):
    """Spearman's rank correlation of two columns, ties at their mean rank.

    None where a column is constant or there are fewer than two records.

    >>> Spearman([1.0, 2.0, 3.0], [10.0, 30.0, 20.0]).value()
    0.5
    >>> Spearman([1.0, 1.0], [1.0, 2.0]).value() is None
    True
    """

    def __init__(self, x: ArrayLike, y: ArrayLike) -> None:
        super().__init__(x, y)
        self.x, self.y = map(Column, self.columns)

    def replicates(self, block: Block) -> Floats:
        x, y = block.ranked(self.x), block.ranked(self.y)
        shared = np.einsum("bn,bn->b", x.weighted_BN, y.rank_BN)
        return _quotient(shared, np.sqrt(x.squares_B * y.squares_B))


class Auroc(Statistic):
    """Area under the ROC curve of a score for a label: P(score of a positive > score of a negative), ties half.

    Mann–Whitney's rank sum over midranks. With `descending`, smaller scores are the positive side. None where one of
    the two classes is empty.

    >>> Auroc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]).value()
    0.75
    >>> Auroc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1], descending=True).value()
    0.25
    >>> Auroc([0.1, 0.4], [1, 1]).value() is None
    True
    """

    def __init__(self, score: ArrayLike, label: ArrayLike, *, descending: bool = False) -> None:
        super().__init__(score, np.asarray(label, dtype=bool))
        self.score, self.descending = Column(self.columns[0]), descending

    def replicates(self, block: Block) -> Floats:
        label = self.columns[1]
        positives = block.counts_BN @ label
        pairs = positives * (self.size - positives)
        # Centred ranks r - (n + 1)/2: their sum over positives is U - positives · negatives / 2.
        share = _quotient(block.ranked(self.score).weighted_BN @ label, pairs)
        return 0.5 - share if self.descending else 0.5 + share


@dataclass(frozen=True)
class Interval:
    """A percentile interval from bootstrap replicates.

    `undefined` are replicates in which the statistic had no value, such as a share of harmful updates without any.
    """

    low: float
    high: float
    undefined: int = 0

    def covers(self, value: float) -> bool:
        """Whether `value` lies in the closed interval.

        >>> Interval(1.0, 2.0).covers(2.0)
        True
        """
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Estimate:
    """A statistic of a population of `n` records; `value` is None where the population does not define it.

    The interval is None where there is nothing to resample: fewer than two records, or no value.
    """

    value: float | None
    n: int
    interval: Interval | None = None


def percentile_interval(replicates: Floats, level: float) -> Interval | None:
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


@dataclass(frozen=True)
class Bootstrap:
    """How to resample; the defaults are the paper's."""

    resamples: int = RESAMPLES
    seed: int = SEED
    level: float = LEVEL

    def __post_init__(self) -> None:
        whole("resamples", self.resamples, 1, MOST_RESAMPLES)
        whole("seed", self.seed, 0, LARGEST_SEED)
        if isinstance(self.level, bool) or not isinstance(self.level, int | float) or not 0 < self.level < 1:
            raise LoopscopeError(f"{setting('level', self.level)}: give a number between 0 and 1, such as {LEVEL}")

    def counts(self, n: int) -> Iterator[Floats]:
        """Blocks of c_BN: how often each of `n` records is in each resample; every row sums to `n`."""
        generator = np.random.default_rng(self.seed)
        rows = max(1, BLOCK_ELEMENTS // max(n, 1))
        for start in range(0, self.resamples, rows):
            size = min(rows, self.resamples - start)
            drawn_BN = generator.integers(0, n, size=(size, n))
            drawn_BN += np.arange(size)[:, None] * n
            counts = np.bincount(drawn_BN.ravel(), minlength=size * n)
            yield counts.reshape(size, n).astype(np.float64)

    def replicates(self, statistics: Mapping[Key, Statistic]) -> dict[Key, Floats]:
        """Every statistic on every resample; NaN where a resample leaves it undefined.

        All statistics must be over the same number of records, in the same order: that is what pairs them.
        """
        sizes = {statistic.size for statistic in statistics.values()}
        if len(sizes) > 1:
            raise ValueError(f"statistics over {sorted(sizes)} records cannot share resamples")
        if not sizes or not (n := sizes.pop()):
            return {key: np.full(self.resamples, np.nan) for key in statistics}
        found: dict[Key, list[Floats]] = {key: [] for key in statistics}
        sums = {key: statistic for key, statistic in statistics.items() if isinstance(statistic, OfSums)}
        stacked = [column for statistic in sums.values() for column in statistic.columns]
        values_NK = np.stack(stacked, axis=1) if stacked else np.empty((n, 0))
        for counts_BN in self.counts(n):
            block = Block(counts_BN)
            sums_BK = counts_BN @ values_NK
            start = 0
            for key, statistic in statistics.items():
                if key in sums:
                    width = len(sums[key].columns)
                    found[key].append(sums[key].combine(sums_BK[:, start : start + width]))
                    start += width
                else:
                    found[key].append(statistic.replicates(block))
        return {key: np.concatenate(blocks) for key, blocks in found.items()}

    def estimate(self, statistics: Mapping[Key, Statistic]) -> dict[Key, Estimate]:
        """Value and interval of every statistic, from shared resamples."""
        values = {key: statistic.value() for key, statistic in statistics.items()}
        sampled = {
            key: statistic for key, statistic in statistics.items() if statistic.size > 1 and values[key] is not None
        }
        intervals = {key: percentile_interval(found, self.level) for key, found in self.replicates(sampled).items()}
        return {key: Estimate(values[key], statistic.size, intervals.get(key)) for key, statistic in statistics.items()}
