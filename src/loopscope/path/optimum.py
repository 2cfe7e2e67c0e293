"""The continuous optimum of concave and of general paths: Appendix "Refined numerical optima".

Brackets of one sign change are shrunk together. Each round interpolates linearly between the bracket's ends, moves the
point a little towards the middle so that both ends close in, and keeps it near enough to the middle that bisection
would be at most one round quicker (interpolate, truncate, project). Smooth functions need around a dozen rounds for a
width of 1e-12, none more than ⌈log2(width / tolerance)⌉ + 1.

`refine_bracket` narrows brackets by curvature bounds (Appendix "Refinement of the numerical optimum estimate"). Without
concavity no finite search proves a maximum; `search_optimum` returns what it looked at. Shapes: N updates, m sorted
locations per update, m - 1 cells between them.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loopscope.errors import LoopscopeError
from loopscope.path.arrays import FloatArray, IntArray, Interval, as_floats, per_update, plain, quiet, require

# f(alpha_K, rows_K) -> values_K: the function of update rows[k] at the scale alpha[k], for every k.
PathFunction: TypeAlias = Callable[[FloatArray, IntArray], ArrayLike]

# Below this width, a bracket near scale 1 need not contain another float64 number.
SMALLEST_TOLERANCE = 1e-15
TRUNCATION = 0.5
# Aiming a little below the tolerance, so that rounding never costs a round more than promised.
AIM = 0.999
# Rounded slopes can make intervals that share one point miss each other by this much.
MISS = 1e-12

PAPER_LOCATIONS = 257
# Cells split per round: few enough to follow what the last round found, many enough to fill a batch.
SPLITS = 16
# Sampled secants understate the largest curvature; the estimate is raised by this factor.
CAUTION = 1.5
# Narrower cells are left to the bracketing of φ' = 0.
NARROWEST = 1e-6


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


def shrink(
    name: str,
    function: PathFunction,
    brackets: Brackets,
    tolerance: float,
    above: Callable[[FloatArray], NDArray[np.bool_]],
    *,
    bisect: bool = False,
) -> Brackets:
    """Narrow every bracket to `tolerance`.

    Invariant: `above(f)` is true at the lower end and false at the upper end, so the bracket closes on the
    end of the interval where it holds, also where f vanishes on a whole interval. Brackets that are narrow
    enough from the start are not evaluated. `bisect` takes the middle of every bracket and nothing else.
    """
    if not SMALLEST_TOLERANCE <= tolerance < 1:
        raise LoopscopeError(f"tolerance is {tolerance}: give a width between {SMALLEST_TOLERANCE:g} and 1")
    rows, *ends = brackets
    lower, upper, at_lower, at_upper = (end.copy() for end in ends)
    aim = AIM * tolerance
    initial = np.maximum(upper - lower, aim)
    reach = aim * 2.0 ** np.ceil(np.log2(initial / aim))
    active = np.flatnonzero(upper - lower > tolerance)
    while active.size:
        current = Brackets(rows[active], lower[active], upper[active], at_lower[active], at_upper[active])
        middle = current.lower + 0.5 * (current.upper - current.lower)
        alpha = middle if bisect else _next_point(current, initial[active], reach[active])
        value = evaluate(name, function, alpha, current.rows)
        left = above(value)
        lower[active] = np.where(left, alpha, current.lower)
        at_lower[active] = np.where(left, value, current.at_lower)
        upper[active] = np.where(left, current.upper, alpha)
        at_upper[active] = np.where(left, current.at_upper, value)
        reach[active] *= 0.5
        active = active[upper[active] - lower[active] > tolerance]
    return Brackets(rows, lower, upper, at_lower, at_upper)


def crossing_estimate(brackets: Brackets) -> FloatArray:
    """Where the chord through the two ends vanishes, inside the bracket; its lower end where both values are equal."""
    # Scaling first: the difference of two finite values can leave float64, their scaled difference cannot.
    largest = np.maximum(np.abs(brackets.at_lower), np.abs(brackets.at_upper))
    with quiet():
        start, end = brackets.at_lower / largest, brackets.at_upper / largest
        share = np.where(brackets.at_lower != brackets.at_upper, start / (start - end), 0.0)
    return np.clip(brackets.lower + (brackets.upper - brackets.lower) * share, brackets.lower, brackets.upper)


def _next_point(brackets: Brackets, initial: FloatArray, reach: FloatArray) -> FloatArray:
    width = brackets.upper - brackets.lower
    middle = brackets.lower + 0.5 * width
    chord = crossing_estimate(brackets)
    truncation = TRUNCATION * width**2 / initial
    closer = chord + np.sign(middle - chord) * truncation
    truncated = np.where(truncation <= np.abs(middle - chord), closer, middle)
    slack = np.maximum(reach - 0.5 * width, 0.0)
    point = np.clip(truncated, middle - slack, middle + slack)
    return np.where((point > brackets.lower) & (point < brackets.upper), point, middle)


class Location(IntEnum):
    """Where on [0, 1] an optimum lies, as a small integer that arrays can hold."""

    LEFT_ENDPOINT = 0
    INTERIOR = 1
    RIGHT_ENDPOINT = 2


class ConcaveOptimum(NamedTuple):
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
    location: NDArray[np.int8]
    """Codes of `Location`."""


def concave_optimum(
    derivative: PathFunction, updates: int, *, tolerance: float = 1e-12, bisect: bool = False
) -> ConcaveOptimum:
    """α* = min argmax of φ over [0, 1] for concave paths, by bracketing φ' = 0.

    Concavity decides endpoints from two slopes: φ'(0) ≤ 0 puts the smallest maximiser at 0, and φ'(1) > 0
    puts it at 1. Otherwise φ'(0) > 0 ≥ φ'(1), and the bracket closes on the smallest zero of φ' (flat tops
    included), to a width of at most `tolerance`. Concavity is not checked: other paths need `search_optimum`.

    Args:
        derivative: `derivative(alpha, rows)` returns φ' of update `rows[k]` at scale `alpha[k]` for each k.
        updates: the number of updates; rows run from 0 to updates - 1.
        tolerance: the largest width of an interior bracket.
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
    rows = np.arange(updates)
    at_zero = evaluate("derivative", derivative, np.zeros(updates), rows)
    at_one = evaluate("derivative", derivative, np.ones(updates), rows)
    left = at_zero <= 0
    right = ~left & (at_one > 0)
    whole = Brackets(
        rows,
        np.where(right, 1.0, 0.0),
        np.where(left, 0.0, 1.0),
        np.where(right, at_one, at_zero),
        np.where(left, at_zero, at_one),
    )
    found = shrink("derivative", derivative, whole, tolerance, lambda slope: slope > 0, bisect=bisect)
    location = np.where(left, Location.LEFT_ENDPOINT, np.where(right, Location.RIGHT_ENDPOINT, Location.INTERIOR))
    return ConcaveOptimum(crossing_estimate(found), *found[1:], location.astype(np.int8))


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
    require((lower >= 0) & (upper <= 1), "the bracket leaves [0, 1]", "scales are fractions of the update")
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


class Samples(NamedTuple):
    """φ and φ' at sorted locations, each of shape (N, m)."""

    alpha: FloatArray
    value: FloatArray
    slope: FloatArray


def curvature_of(samples: Samples) -> FloatArray:
    """An estimate of the largest |φ''| from slopes and values, shape (N,)."""
    width, rise = np.diff(samples.alpha), np.diff(samples.value)
    secant = np.abs(np.diff(samples.slope)) / width
    forward = np.abs(rise - width * samples.slope[:, :-1])
    backward = np.abs(rise - width * samples.slope[:, 1:])
    bend = 2 * np.maximum(forward, backward) / width**2
    estimate: FloatArray = CAUTION * np.maximum(secant, bend).max(axis=1)
    return estimate


def ceilings(samples: Samples, curvature: FloatArray) -> FloatArray:
    """What φ cannot exceed on each cell while |φ''| ≤ K, one K per update, shape (N, m - 1).

    Both parabolas through the ends are convex, so the top of their minimum is at an end or where they meet.
    """
    width = np.diff(samples.alpha)
    K = curvature[:, None]
    left, right = samples.value[:, :-1], samples.value[:, 1:]
    slope_left, slope_right = samples.slope[:, :-1], samples.slope[:, 1:]
    # The difference of the parabolas is linear in x, with this slope; it vanishes only if both are one line.
    opening = slope_left - slope_right + K * width
    apart = right - left - slope_right * width + 0.5 * K * width**2
    x = np.clip(np.divide(apart, opening, out=np.zeros_like(width), where=opening > 0), 0.0, width)
    top = left + slope_left * x + 0.5 * K * x**2
    highest: FloatArray = np.maximum(np.maximum(left, right), top)
    return highest


def split_middles(samples: Samples, count: int) -> FloatArray:
    """The middles of each update's `count` cells with the highest ceiling, wide before narrow, left before right."""
    width = np.diff(samples.alpha)
    ceiling = ceilings(samples, curvature_of(samples))
    ceiling[width < NARROWEST] = -np.inf
    chosen = np.lexsort((-width, -ceiling), axis=-1)[:, :count]
    return np.take_along_axis(0.5 * (samples.alpha[:, :-1] + samples.alpha[:, 1:]), chosen, axis=1)


def smallest_maximiser(rows: IntArray, alpha: FloatArray, value: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The smallest scale of the largest value among each row's candidates; every row has at least one."""
    order = np.lexsort((alpha, -value, rows))
    _, first = np.unique(rows[order], return_index=True)
    best = order[first]
    return alpha[best], value[best]


class CandidateSearch(NamedTuple):
    """The best of the evaluated candidates of each update, and what was searched."""

    alpha: FloatArray
    """The smallest maximiser of φ among the candidates."""
    value: FloatArray
    """φ there. A missed maximum could be higher."""
    predicted_value: FloatArray
    """φ(α̂) ≤ value; α̂ is a candidate."""
    searched: FloatArray
    """The locations at which φ and φ' were evaluated, 0 and 1 included, sorted, shape (N, locations)."""


def search_optimum(
    value: PathFunction,
    derivative: PathFunction,
    predicted: ArrayLike,
    *,
    locations: int = PAPER_LOCATIONS,
    tolerance: float = 1e-12,
) -> CandidateSearch:
    """Search the smallest maximiser of φ over [0, 1] among adaptively chosen candidates.

    Half of the locations are spread evenly; the others split the cells whose ceiling is highest, the ceiling
    of a cell [l, r] being the top of min{φ(l) + φ'(l)x + Kx²/2, φ(r) - φ'(r)y + Ky²/2} with x = a - l and
    y = r - a, which no path with |φ''| ≤ K exceeds; K is estimated from the samples. Each cell with
    φ'(l) > 0 ≥ φ'(r) then holds a local maximum, which is bracketed to `tolerance`. The candidates are all
    locations, those maxima and α̂; equal values choose the smaller scale.

    Args:
        value: `value(alpha, rows)` returns φ of update `rows[k]` at scale `alpha[k]` for each k.
        derivative: the same for φ'.
        predicted: α̂ of each update, shape (N,).
        locations: how many locations each update gets, besides α̂ and the refined maxima.
        tolerance: the width of a refined bracket.

    >>> import numpy as np
    >>> wave = lambda alpha, rows: np.sin(9 * alpha)
    >>> slope = lambda alpha, rows: 9 * np.cos(9 * alpha)
    >>> found = search_optimum(wave, slope, predicted=[1.0])
    >>> bool(abs(found.alpha[0] - np.pi / 18) < 1e-12)
    True
    """
    if locations < 3:
        raise LoopscopeError(f"locations is {locations}: give at least 3")
    scales = as_floats("predicted", predicted)
    if scales.ndim != 1:
        raise LoopscopeError(f"predicted has shape {scales.shape}: give one scale per update on one axis")
    rows = np.arange(scales.size)

    def sample(alpha: FloatArray) -> Samples:
        owners = np.repeat(rows, alpha.shape[1])
        phi = evaluate("value", value, alpha.ravel(), owners)
        slope = evaluate("derivative", derivative, alpha.ravel(), owners)
        return Samples(alpha, phi.reshape(alpha.shape), slope.reshape(alpha.shape))

    start = (locations + 1) // 2
    samples = sample(np.tile(np.arange(start) / (start - 1), (rows.size, 1)))
    while (left := locations - samples.alpha.shape[1]) > 0:
        more = sample(split_middles(samples, min(SPLITS, left)))
        both: list[Any] = [np.concatenate(pair, axis=1) for pair in zip(samples, more, strict=True)]
        order = np.argsort(both[0], axis=1)
        samples = Samples(*(np.take_along_axis(column, order, axis=1) for column in both))

    peak, cell = np.nonzero((samples.slope[:, :-1] > 0) & (samples.slope[:, 1:] <= 0))
    ends = (column[peak, cell + side] for column in (samples.alpha, samples.slope) for side in (0, 1))
    found = shrink("derivative", derivative, Brackets(peak, *ends), tolerance, lambda slope: slope > 0)
    summits = crossing_estimate(found)
    summit_values = evaluate("value", value, summits, peak)
    predicted_value = evaluate("value", value, scales, rows)

    alpha, best = smallest_maximiser(
        np.concatenate([np.repeat(rows, locations), rows, peak]),
        np.concatenate([samples.alpha.ravel(), scales, summits]),
        np.concatenate([samples.value.ravel(), predicted_value, summit_values]),
    )
    return CandidateSearch(alpha, best, predicted_value, samples.alpha)
