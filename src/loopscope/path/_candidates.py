"""The cells of an adaptive search: their ceilings, which to split, and which hold a local maximum.

Shapes: N updates, m sorted locations each, m - 1 cells between them.
"""

from typing import NamedTuple

import numpy as np

from loopscope._errors import LoopscopeError
from loopscope.path._arrays import FloatArray, IntArray
from loopscope.path._bracketing import Brackets

# Sampled secants understate the largest curvature; the estimate is raised by this factor.
CAUTION = 1.5
# Narrower cells are left to the bracketing of φ' = 0.
NARROWEST = 1e-6
# Slopes may come from FP32 readouts: a secant within this fraction of them refutes no curvature bound.
ROUNDING = 1e-6


class Samples(NamedTuple):
    """φ and φ' at sorted locations, each of shape (N, m)."""

    alpha: FloatArray
    value: FloatArray
    slope: FloatArray


def curvature_of(samples: Samples, given: FloatArray | None) -> FloatArray:
    """The caller's bound of |φ''| where there is one, else an estimate from slopes and values, shape (N,)."""
    width = np.diff(samples.alpha)
    secant = np.abs(np.diff(samples.slope)) / width
    if given is None:
        rise = np.diff(samples.value)
        forward = np.abs(rise - width * samples.slope[:, :-1])
        backward = np.abs(rise - width * samples.slope[:, 1:])
        bend = 2 * np.maximum(forward, backward) / width**2
        estimate: FloatArray = CAUTION * np.maximum(secant, bend).max(axis=1)
        return estimate
    noise = ROUNDING * np.abs(samples.slope).max(axis=1, keepdims=True) / width
    refuted = np.flatnonzero((secant > given[:, None] + noise).any(axis=1))
    if refuted.size:
        raise LoopscopeError(
            f"curvature_bound of update {refuted[0]} is smaller than a sampled change of slope: "
            "give a bound valid on [0, 1]"
        )
    return given


def ceilings(samples: Samples, curvature: FloatArray) -> FloatArray:
    """What φ cannot exceed on each cell while |φ''| ≤ K, shape (N, m - 1).

    Both parabolas through the ends are convex, so the top of their minimum is at an end or where they meet.
    """
    width = np.diff(samples.alpha)
    K = curvature[:, None]
    left, right = samples.value[:, :-1], samples.value[:, 1:]
    slope_left, slope_right = samples.slope[:, :-1], samples.slope[:, 1:]
    # The difference of the parabolas is linear in x, with this slope; it vanishes only if both are one line.
    turn = slope_left - slope_right + K * width
    meet = np.divide(
        right - left - slope_right * width + 0.5 * K * width**2, turn, out=np.zeros_like(width), where=turn > 0
    )
    x = np.clip(meet, 0.0, width)
    top = left + slope_left * x + 0.5 * K * x**2
    highest: FloatArray = np.maximum(np.maximum(left, right), top)
    return highest


def cells_to_split(samples: Samples, given: FloatArray | None, count: int) -> IntArray:
    """The `count` cells of each update with the highest ceiling, wide before narrow, then left before right."""
    width = np.diff(samples.alpha)
    ceiling = ceilings(samples, curvature_of(samples, given))
    ceiling[width < NARROWEST] = -np.inf
    return np.lexsort((-width, -ceiling), axis=-1)[:, :count]


def midpoints(samples: Samples, cells: IntArray) -> FloatArray:
    """The middle of each chosen cell."""
    middle = 0.5 * (samples.alpha[:, :-1] + samples.alpha[:, 1:])
    return np.take_along_axis(middle, cells, axis=1)


def merged(samples: Samples, more: Samples) -> Samples:
    """All samples of both, sorted by location."""
    alpha = np.concatenate([samples.alpha, more.alpha], axis=1)
    order = np.argsort(alpha, axis=1)
    return Samples(
        np.take_along_axis(alpha, order, axis=1),
        np.take_along_axis(np.concatenate([samples.value, more.value], axis=1), order, axis=1),
        np.take_along_axis(np.concatenate([samples.slope, more.slope], axis=1), order, axis=1),
    )


def peak_brackets(samples: Samples) -> Brackets:
    """Every cell with φ'(l) > 0 ≥ φ'(r), as a bracket of its local maximum."""
    rows, cells = np.nonzero((samples.slope[:, :-1] > 0) & (samples.slope[:, 1:] <= 0))
    return Brackets(
        rows,
        samples.alpha[rows, cells],
        samples.alpha[rows, cells + 1],
        samples.slope[rows, cells],
        samples.slope[rows, cells + 1],
    )


def smallest_maximiser(rows: IntArray, alpha: FloatArray, value: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The smallest scale of the largest value among each row's candidates; every row has at least one."""
    order = np.lexsort((alpha, -value, rows))
    _, first = np.unique(rows[order], return_index=True)
    best = order[first]
    return alpha[best], value[best]
