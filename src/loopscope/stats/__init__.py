"""Intervals and rank statistics of stored records: question bootstrap, Spearman, AUROC (NumPy)."""

from loopscope.stats.resampling import Bootstrap, Clusters, Estimate, Interval
from loopscope.stats.statistics import (
    Auroc,
    Best,
    Difference,
    Maximum,
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
    "Clusters",
    "Difference",
    "Estimate",
    "Interval",
    "Maximum",
    "Mean",
    "OfSums",
    "Quantile",
    "Ratio",
    "Spearman",
    "Statistic",
]
