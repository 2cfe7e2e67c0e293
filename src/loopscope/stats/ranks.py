"""Spearman correlation and AUROC with ties, on records and on resamples.

Shapes: N records, B resamples.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loopscope.stats.statistics import Block, Column, column


def midranks(column: Column) -> NDArray[np.float64]:
    """Ranks from 1, equal values at the mean of their places.

    >>> midranks(Column(np.array([0.5, 2.0, 0.5]))).tolist()
    [1.5, 3.0, 1.5]
    """
    ends_G = np.cumsum(np.bincount(column.group))
    starts_G = np.concatenate(([0], ends_G[:-1]))
    ranks: NDArray[np.float64] = ((starts_G + 1 + ends_G) / 2)[column.group]
    return ranks


class Spearman:
    """Spearman's rank correlation of two columns, ties at their mean rank.

    >>> Spearman([1.0, 2.0, 3.0], [10.0, 30.0, 20.0]).value()
    0.5
    >>> Spearman([1.0, 1.0], [1.0, 2.0]).value() is None
    True
    """

    resamples = True

    def __init__(self, x: ArrayLike, y: ArrayLike) -> None:
        self.x, self.y = Column(column(x)), Column(column(y))
        if self.x.values.shape != self.y.values.shape:
            raise ValueError("the two columns have different lengths")

    @property
    def size(self) -> int:
        """Number of records."""
        return self.x.values.size

    def value(self) -> float | None:
        """The correlation; None where a column is constant or there are fewer than two records."""
        if self.size < 2 or np.ptp(self.x.values) == 0 or np.ptp(self.y.values) == 0:
            return None
        return float(np.corrcoef(midranks(self.x), midranks(self.y))[0, 1])

    def replicates(self, block: Block) -> NDArray[np.float64]:
        """The correlation of each resample; NaN where a column is constant in it."""
        x, y = block.ranked(self.x), block.ranked(self.y)
        shared = np.einsum("bn,bn->b", x.weighted_BN, y.rank_BN)
        scale = np.sqrt(x.squares_B * y.squares_B)
        correlation: NDArray[np.float64] = np.divide(shared, scale, out=np.full_like(scale, np.nan), where=scale > 0)
        return correlation


class Auroc:
    """Area under the ROC curve of a score for a label: P(score of a positive > score of a negative), ties half.

    Mann–Whitney's rank sum over midranks. With `descending`, smaller scores are the positive side.

    >>> Auroc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]).value()
    0.75
    >>> Auroc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1], descending=True).value()
    0.25
    >>> Auroc([0.1, 0.4], [1, 1]).value() is None
    True
    """

    resamples = True

    def __init__(self, score: ArrayLike, label: ArrayLike, *, descending: bool = False) -> None:
        self.score = Column(column(score))
        self.label = np.asarray(label, dtype=bool)
        self.descending = descending
        if self.score.values.shape != self.label.shape:
            raise ValueError("score and label have different lengths")

    @property
    def size(self) -> int:
        """Number of records."""
        return self.score.values.size

    def value(self) -> float | None:
        """The area; None where one of the two classes is empty."""
        positives = int(self.label.sum())
        negatives = self.size - positives
        if not positives or not negatives:
            return None
        ranks = float(midranks(self.score)[self.label].sum())
        area = (ranks - positives * (positives + 1) / 2) / (positives * negatives)
        return 1 - area if self.descending else area

    def replicates(self, block: Block) -> NDArray[np.float64]:
        """The area of each resample; NaN where it lost one of the two classes."""
        label = self.label.astype(np.float64)
        positives = block.counts_BN @ label
        pairs = positives * (self.size - positives)
        # Centred ranks r - (n + 1)/2: their sum over positives is U - positives · negatives / 2.
        excess = block.ranked(self.score).weighted_BN @ label
        share: NDArray[np.float64] = np.divide(excess, pairs, out=np.full_like(pairs, np.nan), where=pairs > 0)
        return 0.5 - share if self.descending else 0.5 + share
