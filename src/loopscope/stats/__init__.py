"""Intervals and rank statistics of stored records: question bootstrap, Spearman, AUROC (NumPy)."""

from loopscope.stats.bootstrap import (
    LEVEL,
    RESAMPLES,
    SEED,
    Bootstrap,
    Clusters,
    Estimate,
    Interval,
    bootstrap,
    cluster_sums,
    percentile_interval,
)
from loopscope.stats.ranks import Auroc, Spearman
from loopscope.stats.statistics import Difference, Maximum, Mean, OfSums, Quantile, Ratio, Statistic

__all__ = [
    "LEVEL",
    "RESAMPLES",
    "SEED",
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
    "cluster_sums",
    "percentile_interval",
]
