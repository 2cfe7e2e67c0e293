"""Boundary and predicted root in one interval: Proposition (Root Prediction under Two-Sided Curvature Bounds)."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from loopscope.path._arrays import Bools, Floats, per_update, plain, quiet, require


class RootSandwich(NamedTuple):
    """Intervals of the predicted root r⁽²⁾ and of the progress boundary r₁; all NaN where A ≤ 0."""

    root_lower: Floats
    """2A/L_D ≤ r⁽²⁾."""
    root_upper: Floats
    """r⁽²⁾ ≤ 2A/μ."""
    boundary_lower: Floats
    """min{1, 2A/L_D} ≤ r₁."""
    boundary_upper: Floats
    """r₁ ≤ min{1, 2A/μ}; below 1 only where 2A/μ < 1."""
    distance: Floats
    """|r⁽²⁾ - r₁| ≤ 2A(1/μ - 1/L_D) where 2A/μ < 1; NaN elsewhere, where the proposition gives no distance."""
    bounded: Bools
    """Whether `distance` applies: A > 0 and 2A/μ < 1."""


def root_sandwich(slope: ArrayLike, mu: ArrayLike, L_D: ArrayLike) -> RootSandwich:
    """Enclose r⁽²⁾ = -A/Q and r₁ when -L_D ≤ φ'' ≤ -μ on [0, 1] (Eq. root-sandwich).

    Args:
        slope: A = φ'(0).
        mu: μ > 0, a lower bound of -φ'' on the whole segment.
        L_D: an upper bound of -φ'' on the whole segment, L_D ≥ μ.

    >>> root_sandwich(0.5, 2.0, 4.0)
    RootSandwich(root_lower=0.25, root_upper=0.5, boundary_lower=0.25, boundary_upper=0.5, distance=0.25, bounded=True)
    """
    slope, mu, L_D = per_update(slope=slope, mu=mu, L_D=L_D)
    require(mu > 0, "mu is not positive", "the sandwich needs curvature that stays below zero")
    require(mu <= L_D, "mu exceeds L_D", "mu bounds -φ'' from below and L_D from above")
    slope = np.where(slope > 0, slope, np.nan)
    with quiet():
        root_lower = 2 * (slope / L_D)
        root_upper = 2 * (slope / mu)
        bounded = root_upper < 1
        # A(1/μ - 1/L_D) as (A/μ)(L_D - μ)/L_D: no cancellation when the two bounds nearly agree.
        distance = np.where(bounded, root_upper * ((L_D - mu) / L_D), np.nan)
    return RootSandwich(
        plain(root_lower),
        plain(root_upper),
        plain(np.minimum(root_lower, 1.0)),
        plain(np.minimum(root_upper, 1.0)),
        plain(distance),
        plain(bounded),
    )
