"""Intervals and rank statistics of stored records: question bootstrap, Spearman, AUROC (NumPy)."""

from loopscope.stats.bootstrap import (
    Auroc,
    Best,
    Bootstrap,
    Difference,
    Estimate,
    Interval,
    Mean,
    OfSums,
    Quantile,
    Ratio,
    Spearman,
    Statistic,
)

__all__ = [
    "Auroc",
    "Best",
    "Bootstrap",
    "Difference",
    "Estimate",
    "Interval",
    "Mean",
    "OfSums",
    "Quantile",
    "Ratio",
    "Spearman",
    "Statistic",
]
