"""Spearman correlation and AUROC with ties, on records and on resamples.

Values come from SciPy. On a resample the midrank of a record follows from cumulative counts: with records sorted
by value, rank = (records drawn below) + (records drawn at the same value + 1) / 2. So no resample is sorted again.

Shapes: N records, G groups of equal values, B resamples.
"""

from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata, spearmanr  # type: ignore[import-untyped]

from loopscope.stats.statistics import column


class _Groups:
    """The ascending groups of equal values of one column."""

    def __init__(self, values: NDArray[np.float64]) -> None:
        self.order = np.argsort(values, kind="stable")
        sorted_values = values[self.order]
        first = np.ones(values.size, dtype=bool)
        first[1:] = sorted_values[1:] != sorted_values[:-1]
        self.starts = np.flatnonzero(first)
        self.tied = self.starts.size < values.size
        self.of_record = np.empty(values.size, dtype=np.intp)
        self.of_record[self.order] = np.cumsum(first) - 1

    def totals(self, weights_BN: NDArray[np.float64]) -> NDArray[np.float64]:
        """Weights summed within each group, groups ascending: [B, G]."""
        sorted_BN = np.take(weights_BN, self.order, axis=1)
        return np.add.reduceat(sorted_BN, self.starts, axis=1) if self.tied else sorted_BN

    def centred_midranks(self, counts_BN: NDArray[np.float64]) -> NDArray[np.float64]:
        """Midrank minus its mean (n + 1)/2 of every group in every resample: [B, G]."""
        totals_BG = self.totals(counts_BN)
        ranks_BG = np.cumsum(totals_BG, axis=1)
        # Below + (here + 1)/2 - (n + 1)/2, with below = cumulative - here.
        totals_BG *= 0.5
        ranks_BG -= totals_BG
        ranks_BG -= counts_BN.shape[1] / 2
        return ranks_BG


class Spearman:
    """Spearman's rank correlation of two columns, ties at their mean rank.

    >>> Spearman([1.0, 2.0, 3.0], [10.0, 30.0, 20.0]).value()
    0.5
    >>> Spearman([1.0, 1.0], [1.0, 2.0]).value() is None
    True
    """

    resamples = True

    def __init__(self, x: ArrayLike, y: ArrayLike) -> None:
        self.x, self.y = column(x), column(y)
        if self.x.shape != self.y.shape:
            raise ValueError("the two columns have different lengths")

    @property
    def size(self) -> int:
        """Number of records."""
        return self.x.size

    def value(self) -> float | None:
        """The correlation; None where a column is constant or there are fewer than two records."""
        if self.size < 2 or np.ptp(self.x) == 0 or np.ptp(self.y) == 0:
            return None
        return float(spearmanr(self.x, self.y).statistic)

    @cached_property
    def _groups(self) -> tuple[_Groups, _Groups]:
        return _Groups(self.x), _Groups(self.y)

    def replicates(self, counts_BN: NDArray[np.float64]) -> NDArray[np.float64]:
        """The correlation of each resample; NaN where a column is constant in it."""
        of_x, of_y = self._groups
        x_BN = np.take(of_x.centred_midranks(counts_BN), of_x.of_record, axis=1)
        y_BN = np.take(of_y.centred_midranks(counts_BN), of_y.of_record, axis=1)
        xx = np.einsum("bn,bn,bn->b", counts_BN, x_BN, x_BN)
        yy = np.einsum("bn,bn,bn->b", counts_BN, y_BN, y_BN)
        xy = np.einsum("bn,bn,bn->b", counts_BN, x_BN, y_BN)
        scale = np.sqrt(xx * yy)
        correlation: NDArray[np.float64] = np.divide(xy, scale, out=np.full_like(scale, np.nan), where=scale > 0)
        return correlation


class Auroc:
    """Area under the ROC curve of a score for a label: P(score of a positive > score of a negative), ties half.

    Mann–Whitney's rank sum over SciPy's midranks.

    >>> Auroc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]).value()
    0.75
    >>> Auroc([0.1, 0.4], [1, 1]).value() is None
    True
    """

    resamples = True

    def __init__(self, score: ArrayLike, label: ArrayLike) -> None:
        self.score = column(score)
        self.label = np.asarray(label, dtype=bool)
        if self.score.shape != self.label.shape:
            raise ValueError("score and label have different lengths")

    @property
    def size(self) -> int:
        """Number of records."""
        return self.score.size

    def value(self) -> float | None:
        """The area; None where one of the two classes is empty."""
        positives = int(self.label.sum())
        negatives = self.size - positives
        if not positives or not negatives:
            return None
        ranks = rankdata(self.score)[self.label].sum()
        return float((ranks - positives * (positives + 1) / 2) / (positives * negatives))

    @cached_property
    def _groups(self) -> _Groups:
        return _Groups(self.score)

    def replicates(self, counts_BN: NDArray[np.float64]) -> NDArray[np.float64]:
        """The area of each resample; NaN where it lost one of the two classes."""
        groups = self._groups
        positive_BG = groups.totals(counts_BN * self.label)
        ranks_BG = groups.centred_midranks(counts_BN)
        positives = positive_BG.sum(axis=1)
        negatives = self.size - positives
        # Centred ranks r - (n + 1)/2: the sum over positives is U - positives * negatives / 2.
        above = np.einsum("bg,bg->b", positive_BG, ranks_BG)
        pairs = positives * negatives
        area: NDArray[np.float64] = np.divide(above, pairs, out=np.full_like(pairs, np.nan), where=pairs > 0) + 0.5
        return area
