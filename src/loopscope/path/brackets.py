"""Safeguarded bracketing of one sign change per bracket, vectorised over brackets.

Each round interpolates linearly between the bracket's ends, moves the point a little towards the middle so
that both ends close in, and keeps it near enough to the middle that bisection would be at most one round
quicker (interpolate, truncate, project). Smooth functions need around a dozen rounds for a width of 1e-12,
none more than ⌈log2(width / tolerance)⌉ + 1.

`refine_bracket` narrows brackets by curvature bounds, and intervals say what a bracket means for errors: Appendix
"Refinement of the numerical optimum estimate" and the interval propagation of Appendix "Refined
numerical optima".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from loopscope.errors import LoopscopeError
from loopscope.path.arrays import (
    BoolArray,
    FloatArray,
    Floats,
    IntArray,
    as_floats,
    finite,
    per_update,
    plain,
    quiet,
    require,
    unit_interval,
)

# f(alpha_K, rows_K) -> values_K: the function of update rows[k] at the scale alpha[k], for every k.
PathFunction: TypeAlias = Callable[[FloatArray, IntArray], ArrayLike]

# Below this width, a bracket near scale 1 need not contain another float64 number.
SMALLEST_TOLERANCE = 1e-15
TRUNCATION = 0.5
# Aiming a little below the tolerance, so that rounding never costs a round more than promised.
AIM = 0.999

# What must not rise along a concave path may rise by this fraction of its size through rounding.
CONCAVITY_NOISE = 1e-6


class Brackets(NamedTuple):
    """One bracket [lower, upper] per entry, with the function at both ends."""

    rows: IntArray
    lower: FloatArray
    upper: FloatArray
    at_lower: FloatArray
    at_upper: FloatArray


def evaluate(name: str, function: PathFunction, alpha: FloatArray, rows: IntArray) -> FloatArray:
    """Call the user's function and hold it to its contract."""
    result = as_floats(f"the result of {name}", function(alpha, rows))
    if result.shape != alpha.shape:
        raise LoopscopeError(
            f"{name} returned shape {result.shape} for {alpha.size} scales: return one number per scale"
        )
    return result


def check_tolerance(tolerance: float, noise: float = CONCAVITY_NOISE) -> None:
    """Refuse widths that float64 cannot reach or that are no width at all, and negative noise."""
    if not SMALLEST_TOLERANCE <= tolerance < 1:
        raise LoopscopeError(f"tolerance is {tolerance}: give a width between {SMALLEST_TOLERANCE:g} and 1")
    if not noise >= 0:
        raise LoopscopeError(f"noise is {noise}: give zero or a positive fraction")


def ends_of(updates: int) -> tuple[IntArray, tuple[FloatArray, FloatArray]]:
    """Row numbers, and the scales 0 and 1 once per row."""
    if updates < 0:
        raise LoopscopeError(f"updates is {updates}: give the number of updates")
    return np.arange(updates), (np.zeros(updates), np.ones(updates))


def allowed_rise(noise: float, first: FloatArray, last: FloatArray) -> FloatArray:
    """`noise` relative to the larger of two magnitudes; unlimited for infinite noise, whatever they are."""
    if noise == np.inf:
        return np.full(first.shape, np.inf)
    return noise * np.maximum(np.abs(first), np.abs(last))


def refuse_rising(
    what: str, rows: IntArray, alpha: FloatArray, before: FloatArray, after: FloatArray, rise: FloatArray
) -> None:
    """Refuse paths on which `what` rises by more than `rise` towards the scale `alpha`."""
    rising = np.flatnonzero(after - before > rise)
    if rising.size:
        row, scale = rows[rising[0]], alpha[rising[0]]
        raise LoopscopeError(
            f"{what} of update {row} rises towards scale {scale:.6g}, so the path is not concave: use search_optimum"
        )


def shrink(
    name: str,
    function: PathFunction,
    brackets: Brackets,
    tolerance: float,
    above: Callable[[FloatArray], BoolArray],
    inspect: Callable[[FloatArray, Brackets, FloatArray], None] | None = None,
    *,
    bisect: bool = False,
) -> tuple[Brackets, IntArray]:
    """Narrow every bracket to `tolerance`, and count the evaluations spent on each.

    Invariant: `above(f)` is true at the lower end and false at the upper end, so the bracket closes on the
    end of the interval where it holds, also where f vanishes on a whole interval. `inspect(alpha, brackets, f)`
    sees every evaluation before it is used. `bisect` takes the middle of every bracket and nothing else.
    """
    lower, upper = brackets.lower.copy(), brackets.upper.copy()
    at_lower, at_upper = brackets.at_lower.copy(), brackets.at_upper.copy()
    aim = AIM * tolerance
    initial = np.maximum(upper - lower, aim)
    reach = aim * 2.0 ** np.ceil(np.log2(initial / aim))
    spent = np.zeros(lower.shape, dtype=np.intp)
    active = np.flatnonzero(upper - lower > tolerance)
    while active.size:
        current = Brackets(brackets.rows[active], lower[active], upper[active], at_lower[active], at_upper[active])
        middle = current.lower + 0.5 * (current.upper - current.lower)
        alpha = middle if bisect else _next_point(current, initial[active], reach[active])
        value = evaluate(name, function, alpha, current.rows)
        if inspect is not None:
            inspect(alpha, current, value)
        left = above(value)
        lower[active] = np.where(left, alpha, current.lower)
        at_lower[active] = np.where(left, value, current.at_lower)
        upper[active] = np.where(left, current.upper, alpha)
        at_upper[active] = np.where(left, current.at_upper, value)
        spent[active] += 1
        reach[active] *= 0.5
        active = active[upper[active] - lower[active] > tolerance]
    return Brackets(brackets.rows, lower, upper, at_lower, at_upper), spent


def crossing_estimate(brackets: Brackets) -> FloatArray:
    """Where the chord through the two ends vanishes, inside the bracket."""
    # Scaling first: the difference of two finite values can leave float64, their scaled difference cannot.
    largest = np.maximum(np.abs(brackets.at_lower), np.abs(brackets.at_upper))
    start, end = brackets.at_lower / largest, brackets.at_upper / largest
    share = start / (start - end)
    return np.clip(brackets.lower + (brackets.upper - brackets.lower) * share, brackets.lower, brackets.upper)


def _next_point(brackets: Brackets, initial: FloatArray, reach: FloatArray) -> FloatArray:
    width = brackets.upper - brackets.lower
    middle = brackets.lower + 0.5 * width
    chord = crossing_estimate(brackets)
    side = np.sign(middle - chord)
    truncation = TRUNCATION * width**2 / initial
    truncated = np.where(truncation <= np.abs(middle - chord), chord + side * truncation, middle)
    slack = np.maximum(reach - 0.5 * width, 0.0)
    point = np.clip(truncated, middle - slack, middle + slack)
    inside = (point > brackets.lower) & (point < brackets.upper)
    return np.where(inside, point, middle)


# Rounded slopes can make intervals that share one point miss each other by this much.
MISS = 1e-12


class Interval(NamedTuple):
    """lower ≤ quantity ≤ upper, per update."""

    lower: Floats
    upper: Floats


def refine_bracket(
    lower: ArrayLike,
    upper: ArrayLike,
    slope_lower: ArrayLike,
    slope_upper: ArrayLike,
    mu: ArrayLike,
    nu: ArrayLike,
) -> Interval:
    """Intersect [l, u] with what -ν ≤ φ'' ≤ -μ says about the zero of φ' from either end.

    From φ'(l) > 0 ≥ φ'(u): the zero lies in [l + φ'(l)/ν, l + φ'(l)/μ] and in [u + φ'(u)/μ, u + φ'(u)/ν].

    Args:
        lower: l.
        upper: u > l.
        slope_lower: φ'(l) > 0.
        slope_upper: φ'(u) ≤ 0.
        mu: μ > 0, a lower bound of -φ'' throughout the bracket.
        nu: ν ≥ μ, an upper bound of -φ'' throughout the bracket.

    >>> refine_bracket(0.0, 1.0, 1.0, -1.0, mu=1.6, nu=2.5)
    Interval(lower=0.4, upper=0.6)
    """
    lower, upper, slope_lower, slope_upper, mu, nu = per_update(
        lower=lower, upper=upper, slope_lower=slope_lower, slope_upper=slope_upper, mu=mu, nu=nu
    )
    unit_interval("lower", lower)
    unit_interval("upper", upper)
    require(lower < upper, "lower does not lie below upper", "give an interior bracket")
    require(slope_lower > 0, "slope_lower is not positive", "the path must rise at the lower end")
    require(slope_upper <= 0, "slope_upper is positive", "the path must not rise at the upper end")
    require(mu > 0, "mu is not positive", "the refinement needs curvature that stays below zero")
    require(mu <= nu, "mu exceeds nu", "mu bounds -φ'' from below and nu from above")
    with quiet():
        low = np.maximum(np.maximum(lower, lower + slope_lower / nu), upper + slope_upper / mu)
        high = np.minimum(np.minimum(upper, lower + slope_lower / mu), upper + slope_upper / nu)
    require(
        low <= high + MISS,
        "no zero of φ' fits both the slopes and the curvature bounds",
        "mu and nu must hold on the whole bracket",
    )
    return Interval(plain(np.minimum(low, high)), plain(np.maximum(low, high)))


def scale_error_interval(predicted: ArrayLike, lower: ArrayLike, upper: ArrayLike) -> Interval:
    """|α̂ - α*| for α* known to lie in [l, u]: its smallest and largest possible value.

    >>> scale_error_interval(0.5, 0.25, 0.375)
    Interval(lower=0.125, upper=0.25)
    """
    predicted, lower, upper = per_update(predicted=predicted, lower=lower, upper=upper)
    require(lower <= upper, "lower exceeds upper", "give a bracket")
    below, above = lower - predicted, predicted - upper
    smallest = np.maximum(np.maximum(below, above), 0.0)
    return Interval(plain(smallest), plain(np.maximum(-below, -above)))


def regret_interval(
    predicted_value: ArrayLike,
    lower: ArrayLike,
    upper: ArrayLike,
    value_lower: ArrayLike,
    value_upper: ArrayLike,
    slope_lower: ArrayLike,
    slope_upper: ArrayLike,
) -> Interval:
    """φ(α*) - φ(α̂) for a concave path whose maximiser lies in [l, u].

    φ(α*) is at least the larger of φ(l) and φ(u). Concavity keeps φ below its tangents at l and u, so it is at
    most the smaller of φ(l) + max{φ'(l), 0}(u - l) and φ(u) + max{-φ'(u), 0}(u - l). Both ends are cut at
    zero, because α* is a maximiser.

    Args:
        predicted_value: φ(α̂).
        lower: l, as in `ConcaveOptimum.lower`.
        upper: u ≥ l.
        value_lower: φ(l).
        value_upper: φ(u).
        slope_lower: φ'(l).
        slope_upper: φ'(u).

    >>> regret_interval(0.0, 0.25, 0.5, 1.0, 1.0, 0.5, -0.5)
    Interval(lower=1.0, upper=1.125)
    """
    predicted_value, lower, upper, value_lower, value_upper, slope_lower, slope_upper = per_update(
        predicted_value=predicted_value,
        lower=lower,
        upper=upper,
        value_lower=value_lower,
        value_upper=value_upper,
        slope_lower=slope_lower,
        slope_upper=slope_upper,
    )
    require(lower <= upper, "lower exceeds upper", "give a bracket")
    width = upper - lower
    with quiet():
        least = np.maximum(value_lower, value_upper)
        rise = np.maximum(slope_lower, 0.0) * width
        fall = np.maximum(-slope_upper, 0.0) * width
        # Rounding in nearly flat values can leave a tangent below the other end.
        most = np.maximum(np.minimum(value_lower + rise, value_upper + fall), least)
        smallest = np.maximum(finite("the regret", least - predicted_value), 0.0)
        largest = np.maximum(finite("the regret", most - predicted_value), 0.0)
    return Interval(plain(smallest), plain(largest))
