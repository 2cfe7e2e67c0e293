"""Where progress ends: the boundary r₁, its sampled crossing, and the interval that holds it and the predicted root.

Eq. (progress-boundary), Corollary (Shape of a Finite-Step Failure), Appendix A "The Continuous Progress Boundary", and
Proposition (Root Prediction under Two-Sided Curvature Bounds).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from loopscope.errors import LoopscopeError
from loopscope.path.arrays import (
    Bools,
    FloatArray,
    Floats,
    IntArray,
    as_floats,
    partition,
    per_update,
    plain,
    quiet,
    require,
    same_updates,
    sampled,
)
from loopscope.path.optimum import Brackets, PathFunction, crossing_estimate, evaluate, shrink


class ConcaveBoundary(NamedTuple):
    """r₁ of each concave path, in a bracket with φ(lower) ≥ 0 > φ(upper) where the path crosses."""

    r1: FloatArray
    """The end of the largest initial interval of nonnegative gain, inside its bracket; 1 if the gain never turns
    negative."""
    lower: FloatArray
    upper: FloatArray


def concave_boundary(value: PathFunction, slope: ArrayLike, *, tolerance: float = 1e-12) -> ConcaveBoundary:
    """r₁ = sup{ r : φ ≥ 0 on [0, r] } for concave φ with φ(0) = 0, by bracketing.

    φ(1) ≥ 0 gives r₁ = 1, since a concave path lies above its chord. Otherwise {φ ≥ 0} is the interval
    [0, r₁], and r₁ is bracketed as the sign change of φ(α)/α, which starts at A and never rises. It keeps φ's
    sign without φ's zero at the origin: A < 0 gives 0; A > 0 gives the unique positive zero. Concavity is not
    checked.

    Args:
        value: `value(alpha, rows)` returns φ of update `rows[k]` at scale `alpha[k]` for each k.
        slope: A = φ'(0), shape (N,).
        tolerance: the largest width of a bracket.

    >>> path = lambda alpha, rows: 0.25 * alpha - alpha**2
    >>> concave_boundary(path, [0.25]).r1
    array([0.25])
    """
    slope = as_floats("slope", slope)
    if slope.ndim != 1:
        raise LoopscopeError(f"slope has shape {slope.shape}: give one slope per update on one axis")

    def average_gain(alpha: FloatArray, rows: IntArray) -> FloatArray:
        return evaluate("value", value, alpha, rows) / alpha

    rows = np.arange(slope.size)
    at_one = evaluate("value", value, np.ones(slope.size), rows)
    crosses = at_one < 0
    lower = np.where(crosses, 0.0, 1.0)
    upper = np.where(crosses & (slope < 0), 0.0, 1.0)
    whole = Brackets(rows, lower, upper, slope, at_one)
    found = shrink("value", average_gain, whole, tolerance, lambda average: average >= 0)
    return ConcaveBoundary(crossing_estimate(found), found.lower, found.upper)


class SampledCrossing(NamedTuple):
    """The first grid interval [α₊, α₋) over which the gain goes from nonnegative to negative.

    Continuity puts at least one zero of φ in it. Only for a concave path is that zero known to be the
    progress boundary r₁; a general path may dip below zero unseen between earlier grid points.
    """

    lower: Floats
    """α₊, the grid point before the first observed negative gain; NaN where none was observed."""
    upper: Floats
    """α₋, the grid point of the first observed negative gain; NaN where none was observed."""
    observed: Bools
    """False: no negative gain on the grid, so no error can be assigned to a predicted root."""

    def contains(self, root: ArrayLike) -> Bools:
        """Whether a predicted root hits: α₊ ≤ root < α₋ (Table "Predicting the observed end of progress").

        NaN roots and unobserved crossings never hit.
        """
        roots = np.asarray(root, dtype=np.float64)
        same_updates(root=roots.shape, crossing=np.shape(self.lower))
        return plain((self.lower <= roots) & (roots < self.upper))


def sampled_crossing(grid: ArrayLike, gains: ArrayLike) -> SampledCrossing:
    """Find the first grid point with φ < 0 and the point before it.

    Args:
        grid: scales 0 = a_0 < ... < a_m = 1.
        gains: φ on the grid, shape (..., m + 1), with φ(0) = 0.

    >>> sampled_crossing([0.0, 0.5, 1.0], [0.0, 0.1, -0.2])
    SampledCrossing(lower=0.5, upper=1.0, observed=True)
    """
    grid = partition("grid", grid)
    gains = sampled("gains", gains, grid)
    require(gains[..., 0] == 0, "gains at scale 0 are not zero", "subtract the utility of the current state")
    # The gain at scale 0 is zero, so index 0 stands for "nowhere negative" and for nothing else.
    first = (gains < 0).argmax(axis=-1)
    observed = first > 0
    lower, upper = (np.where(observed, grid[index], np.nan) for index in (first - 1, first))
    return SampledCrossing(plain(lower), plain(upper), plain(observed))


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
    boundary = np.minimum(root_lower, 1.0), np.minimum(root_upper, 1.0)
    return RootSandwich(*map(plain, (root_lower, root_upper, *boundary, distance, bounded)))
