"""Continuous optimum of concave paths: Appendix "Refined numerical optima", to 1e-12, or to 1e-4 as there."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from loopscope.path.arrays import CodeArray, FloatArray, IntArray
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


class Location(IntEnum):
    """Where on [0, 1] an optimum lies, as a small integer that arrays can hold."""

    LEFT_ENDPOINT = 0
    INTERIOR = 1
    RIGHT_ENDPOINT = 2


@dataclass(frozen=True)
class ConcaveOptimum:
    """The smallest maximiser of each concave path, in a bracket with its slopes.

    An interior bracket has φ'(lower) > 0 ≥ φ'(upper). At an endpoint, lower = upper = α*. The signs are
    those of the computed φ': where φ' is noise around zero, so is the last digits' position of the bracket.
    """

    alpha: FloatArray
    """α*, inside its bracket."""
    lower: FloatArray
    upper: FloatArray
    slope_lower: FloatArray
    """φ'(lower)."""
    slope_upper: FloatArray
    """φ'(upper)."""
    location: CodeArray
    """Codes of `Location`."""
    evaluations: IntArray
    """How often φ' was evaluated for each update, the two endpoints included."""

    def __str__(self) -> str:
        left, interior, right = np.bincount(self.location, minlength=3)
        width = np.max(self.upper - self.lower, initial=0.0)
        return (
            f"{self.alpha.size} optima: {left} at 0, {right} at 1, "
            f"{interior} interior in brackets no wider than {width:.1e}"
        )


def concave_optimum(
    derivative: PathFunction,
    updates: int,
    *,
    tolerance: float = 1e-12,
    noise: float = CONCAVITY_NOISE,
    bisect: bool = False,
) -> ConcaveOptimum:
    """α* = min argmax of φ over [0, 1] for concave paths, by bracketing φ' = 0.

    Concavity decides endpoints from two slopes: φ'(0) ≤ 0 puts the smallest maximiser at 0, and φ'(1) > 0
    puts it at 1. Otherwise φ'(0) > 0 ≥ φ'(1), and the bracket closes on the smallest zero of φ' (flat tops
    included), to a width of at most `tolerance`.

    Args:
        derivative: `derivative(alpha, rows)` returns φ' of update `rows[k]` at scale `alpha[k]` for each k.
        updates: the number of updates; rows run from 0 to updates - 1.
        tolerance: the largest width of an interior bracket.
        noise: φ' may rise by this fraction of max{|φ'(0)|, |φ'(1)|} before the path is refused as not
            concave; infinity leaves concavity to the caller.
        bisect: halve brackets instead of interpolating, so that a width of 1e-4 is 2⁻¹⁴, as in the paper.

    >>> import numpy as np
    >>> kappa = np.array([1.0, 4.0, 4.0])
    >>> slope = np.array([2.0, 1.0, -1.0])
    >>> best = concave_optimum(lambda alpha, rows: slope[rows] - kappa[rows] * alpha, 3)
    >>> best.alpha
    array([1.  , 0.25, 0.  ])
    >>> [Location(code).name for code in best.location]
    ['RIGHT_ENDPOINT', 'INTERIOR', 'LEFT_ENDPOINT']
    """
    check_tolerance(tolerance, noise)
    rows, ends = ends_of(updates)
    at_zero = evaluate("derivative", derivative, ends[0], rows)
    at_one = evaluate("derivative", derivative, ends[1], rows)
    rise = allowed_rise(noise, at_zero, at_one)
    refuse_rising("φ'", rows, ends[1], at_zero, at_one, rise)
    location = np.where(at_zero <= 0, Location.LEFT_ENDPOINT, Location.INTERIOR).astype(np.int8)
    location[(at_zero > 0) & (at_one > 0)] = Location.RIGHT_ENDPOINT
    lower = np.where(location == Location.RIGHT_ENDPOINT, 1.0, 0.0)
    upper = np.where(location == Location.LEFT_ENDPOINT, 0.0, 1.0)
    slope_lower = np.where(location == Location.RIGHT_ENDPOINT, at_one, at_zero)
    slope_upper = np.where(location == Location.LEFT_ENDPOINT, at_zero, at_one)
    alpha = lower.copy()
    evaluations = np.full(rows.shape, 2, dtype=np.intp)

    inner = np.flatnonzero(location == Location.INTERIOR)

    def inspect(point: FloatArray, bracket: Brackets, slope: FloatArray) -> None:
        allowed = rise[bracket.rows]
        refuse_rising("φ'", bracket.rows, point, bracket.at_lower, slope, allowed)
        refuse_rising("φ'", bracket.rows, bracket.upper, slope, bracket.at_upper, allowed)

    start = Brackets(rows[inner], lower[inner], upper[inner], slope_lower[inner], slope_upper[inner])
    found, spent = shrink("derivative", derivative, start, tolerance, lambda slope: slope > 0, inspect, bisect=bisect)
    lower[inner], upper[inner] = found.lower, found.upper
    slope_lower[inner], slope_upper[inner] = found.at_lower, found.at_upper
    alpha[inner] = crossing_estimate(found)
    evaluations[inner] += spent
    return ConcaveOptimum(alpha, lower, upper, slope_lower, slope_upper, location, evaluations)
