"""Question-cluster bootstrap: all tokens of a resampled question stay together (Appendix E.8).

Only sums per question enter a ratio of sums, so tokens are summed once and the questions are resampled.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loopscope.stats.statistics import Ratio


def cluster_sums(values: ArrayLike, cluster: ArrayLike) -> NDArray[np.float64]:
    """Sum of `values` in each cluster, clusters in ascending order of their label.

    >>> cluster_sums([1.0, 2.0, 3.0], ["b", "a", "b"]).tolist()
    [2.0, 4.0]
    """
    return Clusters.of(cluster).sums(values)


@dataclass(frozen=True)
class Clusters:
    """Which cluster each record belongs to, worked out once for many columns."""

    index: NDArray[np.intp]
    count: int

    @classmethod
    def of(cls, cluster: ArrayLike) -> "Clusters":
        """From one label per record."""
        labels, index = np.unique(np.asarray(cluster), return_inverse=True)
        return cls(index, labels.size)

    def sums(self, values: ArrayLike) -> NDArray[np.float64]:
        """Sum of `values` in each cluster."""
        array = np.asarray(values, dtype=np.float64)
        return np.bincount(self.index, weights=array, minlength=self.count).astype(np.float64, copy=False)

    def ratio(self, numerator: ArrayLike, denominator: ArrayLike) -> Ratio:
        """Σ numerator / Σ denominator over records, to be resampled by cluster."""
        return Ratio(self.sums(numerator), self.sums(denominator))

    def mean(self, values: ArrayLike) -> Ratio:
        """The record-weighted mean, to be resampled by cluster."""
        array = np.asarray(values, dtype=np.float64)
        return self.ratio(array, np.ones_like(array))
