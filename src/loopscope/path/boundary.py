"""The progress boundary r₁ of concave paths: Eq. (progress-boundary), Corollary (Shape of a Finite-Step Failure)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from loopscope._errors import LoopscopeError
from loopscope.path._arrays import BoolArray, FloatArray, IntArray, as_floats
from loopscope.path._bracketing import (
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
