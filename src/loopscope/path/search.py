"""Continuous optimum of general paths by an adaptive candidate search: Appendix "Refined numerical optima".

Without concavity no finite search proves a maximum; this one says what it looked at. Shapes: N updates, m
locations per update, m - 1 cells between them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from loopscope._errors import LoopscopeError
from loopscope.path._arrays import FloatArray, IntArray, as_floats, non_negative, per_update, unit_interval
from loopscope.path._bracketing import PathFunction, check_tolerance, crossing_estimate, evaluate, shrink
from loopscope.path._candidates import (
    Samples,
    ceilings,
    cells_to_split,
    curvature_of,
    merged,
    midpoints,
    peak_brackets,
    smallest_maximiser,
)

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
