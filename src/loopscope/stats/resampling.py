"""Paired question bootstrap: whole question records are resampled, and every statistic sees the same resamples.

Section 4.1 and Appendix E.2: 2000 resamples, seed 20260904, 95% percentile intervals. Replicate b of a statistic is
its value on n records drawn with replacement. A draw is held as counts, c_BN[b, i] = how often record i was
drawn, so that means and ratios are matrix products and ranks are cumulative sums. Counts come in blocks, so
memory is bounded whatever n is; the stream of draws does not depend on the block size and is the one that
`scipy.stats.bootstrap` makes from `numpy.random.default_rng(seed)`.

`Clusters` is for records that belong to a question, such as its tokens: they stay together (Appendix E.8). Only sums
per question enter a ratio of sums, so tokens are summed once and the questions are resampled.

Shapes: B resamples of a block, N records, K summed columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loopscope.errors import LARGEST_SEED, LoopscopeError, setting, whole
from loopscope.stats.statistics import Block, Floats, OfSums, Ratio, Statistic

SEED = 20260904
RESAMPLES = 2000
LEVEL = 0.95
MOST_RESAMPLES = 10_000_000
# Counts are float64 because they enter matrix products. A hundred thousand of them are 0.8 MB: with the ranks that rank
# statistics keep for a block (of the same size each) they stay in the cache.
BLOCK_ELEMENTS = 100_000

Key = TypeVar("Key")


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


@dataclass(frozen=True)
class Estimate:
    """A statistic of a population of `n` records; `value` is None where the population does not define it."""

    value: float | None
    n: int
    interval: Interval | None = None
    """None where there is nothing to resample: fewer than two records, or no value."""


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
            key: statistic
            for key, statistic in statistics.items()
            if statistic.resamples and statistic.size > 1 and values[key] is not None
        }
        intervals = {key: percentile_interval(found, self.level) for key, found in self.replicates(sampled).items()}
        return {key: Estimate(values[key], statistic.size, intervals.get(key)) for key, statistic in statistics.items()}


@dataclass(frozen=True)
class Clusters:
    """Which cluster each record belongs to, worked out once for many columns."""

    index: NDArray[np.intp]
    count: int

    @classmethod
    def of(cls, cluster: ArrayLike) -> Clusters:
        """From one label per record."""
        labels, index = np.unique(np.asarray(cluster), return_inverse=True)
        return cls(index, labels.size)

    def sums(self, values: ArrayLike) -> Floats:
        """Sum of `values` in each cluster, clusters in ascending order of their label.

        >>> Clusters.of(["b", "a", "b"]).sums([1.0, 2.0, 3.0]).tolist()
        [2.0, 4.0]
        """
        weights = np.asarray(values, dtype=np.float64)
        return np.bincount(self.index, weights=weights, minlength=self.count).astype(np.float64, copy=False)

    def ratio(self, numerator: ArrayLike, denominator: ArrayLike) -> Ratio:
        """Σ numerator / Σ denominator over records, to be resampled by cluster."""
        return Ratio(self.sums(numerator), self.sums(denominator))

    def mean(self, values: ArrayLike) -> Ratio:
        """The record-weighted mean, to be resampled by cluster."""
        return self.ratio(values, np.ones(self.index.size))
