"""Intervals and rank statistics of stored records: question bootstrap, Spearman, AUROC (NumPy)."""

from loopscope.stats.resampling import Bootstrap, Clusters, Estimate, Interval, bootstrap
from loopscope.stats.statistics import (
    Auroc,
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
    "bootstrap",
]
