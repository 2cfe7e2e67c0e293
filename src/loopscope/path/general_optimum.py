"""Continuous optimum of general paths by an adaptive candidate search: Appendix "Refined numerical optima".

Without concavity no finite search proves a maximum; this one says what it looked at. Shapes: N updates, m sorted
locations per update, m - 1 cells between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from loopscope.errors import LoopscopeError
from loopscope.path.arrays import FloatArray, IntArray, as_floats, non_negative, per_update, unit_interval
from loopscope.path.brackets import Brackets, PathFunction, check_tolerance, crossing_estimate, evaluate, shrink

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
    opening = slope_left - slope_right + K * width
    meet = np.divide(
        right - left - slope_right * width + 0.5 * K * width**2, opening, out=np.zeros_like(width), where=opening > 0
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


PAPER_LOCATIONS = 257
# Cells split per round: few enough to follow what the last round found, many enough to fill a batch.
SPLITS = 16


@dataclass(frozen=True)
class CandidateSearch:
    """The best of the evaluated candidates of each update, and what was searched."""

    alpha: FloatArray
    """The smallest maximiser of φ among the candidates."""
    value: FloatArray
    """φ there."""
    predicted_value: FloatArray
    """φ(α̂); α̂ is a candidate."""
    regret: FloatArray
    """value - φ(α̂) ≥ 0. A missed maximum could increase the true regret."""
    ceiling: FloatArray
    """No value of φ exceeds this if |φ''| does not exceed `curvature` on [0, 1]."""
    curvature: FloatArray
    """The bound of |φ''| that `ceiling` uses: the caller's, or 1.5 times the largest sampled secant."""
    certified: bool
    """Whether `curvature` was the caller's bound. If not, `ceiling` is an estimate."""
    locations: int
    """Locations per update at which φ and φ' were evaluated, 0 and 1 included."""
    searched: FloatArray
    """Those locations, sorted, shape (N, locations)."""
    widest: FloatArray
    """The widest gap between neighbouring locations of each update."""
    roots: IntArray
    """Local maxima of each update that were refined by bracketing φ' = 0; each is a candidate."""
    value_evaluations: int
    """Evaluations of φ over all updates."""
    derivative_evaluations: int
    """Evaluations of φ' over all updates."""

    def __str__(self) -> str:
        proof = "certified" if self.certified else "estimated"
        gap = np.max(self.ceiling - self.value, initial=0.0)
        return (
            f"{self.alpha.size} updates searched at {self.locations} locations each, {np.sum(self.roots)} local "
            f"maxima refined; an unseen value exceeds the best candidate by at most {gap:.1e} ({proof})"
        )


def search_optimum(
    value: PathFunction,
    derivative: PathFunction,
    predicted: ArrayLike,
    *,
    locations: int = PAPER_LOCATIONS,
    tolerance: float = 1e-12,
    curvature_bound: ArrayLike | None = None,
) -> CandidateSearch:
    """Search the smallest maximiser of φ over [0, 1] among adaptively chosen candidates.

    Half of the locations are spread evenly; the others split the cells whose ceiling is highest, the ceiling
    of a cell [l, r] being the top of min{φ(l) + φ'(l)x + Kx²/2, φ(r) - φ'(r)y + Ky²/2} with x = a - l and
    y = r - a, which no path with |φ''| ≤ K exceeds. Each cell with φ'(l) > 0 ≥ φ'(r) then holds a local
    maximum, which is bracketed to `tolerance`. The candidates are all locations, those maxima and α̂; equal
    values choose the smaller scale.

    Args:
        value: `value(alpha, rows)` returns φ of update `rows[k]` at scale `alpha[k]` for each k.
        derivative: the same for φ'.
        predicted: α̂ of each update, shape (N,).
        locations: how many locations each update gets, besides α̂ and the refined maxima.
        tolerance: the width of a refined bracket.
        curvature_bound: K ≥ sup |φ''|, one number or one per update, where it is known. Without it K is
            estimated from the samples.

    >>> import numpy as np
    >>> wave = lambda alpha, rows: np.sin(9 * alpha)
    >>> slope = lambda alpha, rows: 9 * np.cos(9 * alpha)
    >>> found = search_optimum(wave, slope, predicted=[1.0], curvature_bound=81.0)
    >>> bool(abs(found.alpha[0] - np.pi / 18) < 1e-12)
    True
    >>> found.roots
    array([2])
    """
    check_tolerance(tolerance)
    if locations < 3:
        raise LoopscopeError(f"locations is {locations}: give at least 3")
    predicted, given = _arguments(predicted, curvature_bound)
    rows = np.arange(predicted.size)

    def sample(alpha: FloatArray) -> Samples:
        flat, owners = alpha.ravel(), np.repeat(rows, alpha.shape[1])
        phi = evaluate("value", value, flat, owners).reshape(alpha.shape)
        return Samples(alpha, phi, evaluate("derivative", derivative, flat, owners).reshape(alpha.shape))

    start = (locations + 1) // 2
    samples = sample(np.tile(np.arange(start) / (start - 1), (rows.size, 1)))
    while samples.alpha.shape[1] < locations:
        chosen = cells_to_split(samples, given, min(SPLITS, locations - samples.alpha.shape[1]))
        samples = merged(samples, sample(midpoints(samples, chosen)))
    curvature = curvature_of(samples, given)

    peaks = peak_brackets(samples)
    found, spent = shrink("derivative", derivative, peaks, tolerance, lambda slope: slope > 0)
    summits = crossing_estimate(found)
    summit_values = evaluate("value", value, summits, found.rows)
    predicted_value = evaluate("value", value, predicted, rows)

    alpha, best = smallest_maximiser(
        np.concatenate([np.repeat(rows, locations), rows, found.rows]),
        np.concatenate([samples.alpha.ravel(), predicted, summits]),
        np.concatenate([samples.value.ravel(), predicted_value, summit_values]),
    )
    return CandidateSearch(
        alpha=alpha,
        value=best,
        predicted_value=predicted_value,
        regret=best - predicted_value,
        ceiling=np.maximum(ceilings(samples, curvature).max(axis=1), best),
        curvature=curvature,
        certified=given is not None,
        locations=locations,
        searched=samples.alpha,
        widest=np.diff(samples.alpha).max(axis=1),
        roots=np.bincount(found.rows, minlength=rows.size),
        value_evaluations=samples.alpha.size + rows.size + summits.size,
        derivative_evaluations=samples.alpha.size + int(spent.sum()),
    )


def _arguments(predicted: ArrayLike, bound: ArrayLike | None) -> tuple[FloatArray, FloatArray | None]:
    scales = unit_interval("predicted", as_floats("predicted", predicted))
    if scales.ndim != 1:
        raise LoopscopeError(f"predicted has shape {scales.shape}: give one scale per update on one axis")
    if bound is None:
        return scales, None
    _, constants = per_update(predicted=scales, curvature_bound=bound)
    return scales, np.broadcast_to(non_negative("curvature_bound", constants), scales.shape)
