"""Where progress ends: the boundary r₁, its sampled crossing, and the interval that holds it and the predicted root.

Eq. (progress-boundary), Corollary (Shape of a Finite-Step Failure), Appendix A "The Continuous Progress Boundary", and
Proposition (Root Prediction under Two-Sided Curvature Bounds).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from loopscope.errors import LoopscopeError
from loopscope.path.arrays import (
    BoolArray,
    Bools,
    FloatArray,
    Floats,
    IntArray,
    as_floats,
    as_numbers,
    partition,
    per_update,
    plain,
    quiet,
    require,
    same_updates,
    sampled,
)
from loopscope.path.brackets import (
    CONCAVITY_NOISE,
    Brackets,
    PathFunction,
    allowed_rise,
    check_tolerance,
    crossing_estimate,
    ends_of,
    evaluate,
    refuse_rising,
    shrink,
)


@dataclass(frozen=True)
class ConcaveBoundary:
    """r₁ of each concave path, in a bracket with φ(lower) ≥ 0 > φ(upper) where the path crosses."""

    r1: FloatArray
    """The end of the largest initial interval of nonnegative gain, inside its bracket."""
    lower: FloatArray
    upper: FloatArray
    crosses: BoolArray
    """True: φ(1) < 0, and r₁ < 1 ends the progress. False: the gain is nonnegative throughout and r₁ = 1."""
    evaluations: IntArray
    """How often φ was evaluated for each update."""

    def __str__(self) -> str:
        return (
            f"{np.count_nonzero(self.crosses)} of {self.r1.size} updates lose their gain before the full step, "
            f"in brackets no wider than {np.max(self.upper - self.lower, initial=0.0):.1e}"
        )


def concave_boundary(
    value: PathFunction, slope: ArrayLike, *, tolerance: float = 1e-12, noise: float = CONCAVITY_NOISE
) -> ConcaveBoundary:
    """r₁ = sup{ r : φ ≥ 0 on [0, r] } for concave φ with φ(0) = 0, by bracketing.

    φ(1) ≥ 0 gives r₁ = 1, since a concave path lies above its chord. Otherwise {φ ≥ 0} is the interval
    [0, r₁], and r₁ is bracketed as the sign change of φ(α)/α, which starts at A and never rises. It keeps φ's
    sign without φ's zero at the origin: A < 0 gives 0; A > 0 gives the unique positive zero.

    Args:
        value: `value(alpha, rows)` returns φ of update `rows[k]` at scale `alpha[k]` for each k.
        slope: A = φ'(0), shape (N,).
        tolerance: the largest width of a bracket.
        noise: φ may be off by this fraction of max{|A|, |φ(1)|} before a rising φ(α)/α is refused as not
            concave; infinity leaves concavity to the caller.

    >>> path = lambda alpha, rows: 0.25 * alpha - alpha**2
    >>> concave_boundary(path, [0.25]).r1
    array([0.25])
    """
    check_tolerance(tolerance, noise)
    slope = as_floats("slope", slope)
    if slope.ndim != 1:
        raise LoopscopeError(f"slope has shape {slope.shape}: give one slope per update on one axis")
    rows, (zeros, ones) = ends_of(slope.size)
    at_one = evaluate("value", value, ones, rows)
    rise = allowed_rise(noise, slope, at_one)
    refuse_rising("φ/α", rows, ones, slope, at_one, rise)
    crosses = at_one < 0
    lower = np.where(crosses, 0.0, 1.0)
    upper = ones.copy()
    r1 = lower.copy()
    evaluations = np.ones(rows.shape, dtype=np.intp)
    upper[crosses & (slope < 0)] = 0.0
    inner = np.flatnonzero(crosses & (slope >= 0))

    def average_gain(alpha: FloatArray, wanted: IntArray) -> FloatArray:
        return evaluate("value", value, alpha, wanted) / alpha

    def inspect(alpha: FloatArray, bracket: Brackets, average: FloatArray) -> None:
        allowed = rise[bracket.rows] / alpha
        refuse_rising("φ/α", bracket.rows, alpha, bracket.at_lower, average, allowed)
        refuse_rising("φ/α", bracket.rows, bracket.upper, average, bracket.at_upper, allowed)

    start = Brackets(rows[inner], zeros[inner], ones[inner], slope[inner], at_one[inner])
    found, spent = shrink("value", average_gain, start, tolerance, lambda average: average >= 0, inspect)
    lower[inner], upper[inner] = found.lower, found.upper
    r1[inner] = crossing_estimate(found)
    evaluations[inner] += spent
    return ConcaveBoundary(r1, lower, upper, crosses, evaluations)


@dataclass(frozen=True)
class SampledCrossing:
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
        roots = as_numbers("root", root)
        same_updates(root=roots.shape, crossing=np.shape(self.lower))
        return plain((self.lower <= roots) & (roots < self.upper))

    def __str__(self) -> str:
        if np.ndim(self.observed):
            return f"{np.count_nonzero(self.observed)} of {np.size(self.observed)} updates have an observed crossing"
        if self.observed:
            return f"the gain turns negative in [{self.lower:g}, {self.upper:g})"
        return "no crossing observed on the grid"


def sampled_crossing(grid: ArrayLike, gains: ArrayLike) -> SampledCrossing:
    """Find the first grid point with φ < 0 and the point before it.

    Args:
        grid: scales 0 = a_0 < ... < a_m = 1.
        gains: φ on the grid, shape (..., m + 1), with φ(0) = 0.

    >>> print(sampled_crossing([0.0, 0.5, 1.0], [0.0, 0.1, -0.2]))
    the gain turns negative in [0.5, 1)
    """
    grid = partition("grid", grid)
    gains = sampled("gains", gains, grid)
    require(gains[..., 0] == 0, "gains at scale 0 are not zero", "subtract the utility of the current state")
    negative = gains < 0
    first = negative.argmax(axis=-1)
    # The gain at scale 0 is zero, so index 0 stands for "nowhere negative" and for nothing else.
    observed = np.asarray(first > 0)
    lower = np.where(observed, grid[first - 1], np.nan)
    upper = np.where(observed, grid[first], np.nan)
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
    return RootSandwich(
        plain(root_lower),
        plain(root_upper),
        plain(np.minimum(root_lower, 1.0)),
        plain(np.minimum(root_upper, 1.0)),
        plain(distance),
        plain(bounded),
    )
