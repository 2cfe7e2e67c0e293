"""Paired question bootstrap: whole question records are resampled, every statistic sees the same resamples.

Section 4.1 and Appendix E.2: 2000 resamples, seed 20260904, percentile intervals. Replicate b of a statistic is
its value on n records drawn with replacement. A draw is held as counts, c_BN[b, i] = how often record i was
drawn, so that means and ratios are matrix products and ranks are cumulative sums. Counts come in blocks, so
memory is bounded whatever n is; the stream of draws does not depend on the block size and is the one that
`scipy.stats.bootstrap` makes from `numpy.random.default_rng(seed)`.

Shapes: B resamples of a block, N records.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from loopscope._arguments import LARGEST_SEED, whole
from loopscope._errors import LoopscopeError, setting
from loopscope.stats.estimate import Estimate, percentile_interval
from loopscope.stats.resample import Block
from loopscope.stats.statistics import OfSums, Statistic

SEED = 20260904
RESAMPLES = 2000
LEVEL = 0.95
MOST_RESAMPLES = 10_000_000
# Counts are float64 because they enter matrix products. A hundred thousand of them are 0.8 MB: with the ranks that rank
# statistics keep for a block (of the same size each) they stay in the cache.
BLOCK_ELEMENTS = 100_000

Key = TypeVar("Key")


@dataclass(frozen=True)
class Bootstrap:
    """How to resample; the defaults are the paper's."""

    resamples: int = RESAMPLES
    seed: int = SEED
    level: float = LEVEL
    block_elements: int = BLOCK_ELEMENTS

    def __post_init__(self) -> None:
        whole("resamples", self.resamples, 1, MOST_RESAMPLES)
        whole("seed", self.seed, 0, LARGEST_SEED)
        if isinstance(self.level, bool) or not isinstance(self.level, int | float) or not 0 < self.level < 1:
            raise LoopscopeError(f"{setting('level', self.level)}: give a number between 0 and 1, such as {LEVEL}")

    def counts(self, n: int) -> Iterator[NDArray[np.float64]]:
        """Blocks of c_BN: how often each of `n` records is in each resample; every row sums to `n`."""
        generator = np.random.default_rng(self.seed)
        rows = max(1, self.block_elements // max(n, 1))
        for start in range(0, self.resamples, rows):
            size = min(rows, self.resamples - start)
            drawn_BN = generator.integers(0, n, size=(size, n))
            drawn_BN += np.arange(size)[:, None] * n
            counts = np.bincount(drawn_BN.ravel(), minlength=size * n)
            yield counts.reshape(size, n).astype(np.float64)

    def replicates(self, statistics: Mapping[Key, Statistic]) -> dict[Key, NDArray[np.float64]]:
        """Every statistic on every resample; NaN where a resample leaves it undefined.

        All statistics must be over the same number of records, in the same order: that is what pairs them.
        """
        sizes = {statistic.size for statistic in statistics.values()}
        if len(sizes) > 1:
            raise ValueError(f"statistics over {sorted(sizes)} records cannot share resamples")
        if not sizes or not (n := sizes.pop()):
            return {key: np.full(self.resamples, np.nan) for key in statistics}
        parts: dict[Key, list[NDArray[np.float64]]] = {key: [] for key in statistics}
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
                    parts[key].append(sums[key].combine(sums_BK[:, start : start + width]))
                    start += width
                else:
                    parts[key].append(statistic.replicates(block))
        return {key: np.concatenate(blocks) for key, blocks in parts.items()}

    def estimate(self, statistics: Mapping[Key, Statistic]) -> dict[Key, Estimate]:
        """Value and interval of every statistic, from shared resamples."""
        sampled = {
            key: statistic
            for key, statistic in statistics.items()
            if statistic.resamples and statistic.size > 1 and statistic.value() is not None
        }
        replicates = self.replicates(sampled)
        return {
            key: Estimate(
                statistic.value(),
                statistic.size,
                percentile_interval(replicates[key], self.level) if key in replicates else None,
            )
            for key, statistic in statistics.items()
        }


def bootstrap(statistic: Statistic, settings: Bootstrap | None = None) -> Estimate:
    """Value and interval of one statistic.

    >>> from loopscope.stats import Mean
    >>> bootstrap(Mean([1.0, 2.0, 4.0, 5.0])).value
    3.0
    """
    return (settings or Bootstrap()).estimate({"": statistic})[""]
