"""Integrated curvature deviation C(a) enclosed by finite sums: Proposition (Finite-Partition Curvature Bounds).

The statements on partition cells suppose |φ''(u) - φ''(v)| ≤ L_ℓ |u - v| throughout cell ℓ. Samples cannot
prove that, but they can refute it, and a refuted constant gives no bound (`Cells`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from loopscope.errors import LoopscopeError
from loopscope.path.arrays import (
    FloatArray,
    Floats,
    IntArray,
    as_floats,
    cellwise,
    finite,
    partition,
    plain,
    quiet,
    row_blocks,
    same_updates,
    sampled,
    unit_interval,
)

# Curvatures may come from FP32 readouts: a change within this fraction of the largest curvature of the
# update is rounding, not a contradiction.
ROUNDING = 1e-6


class Cells(NamedTuple):
    """Shapes: nodes (m,), width (m - 1,), curvature (..., m), lipschitz (..., m - 1)."""

    nodes: FloatArray
    width: FloatArray
    curvature: FloatArray
    lipschitz: FloatArray

    def blocks(self) -> Iterator[tuple[slice, Cells]]:
        """The cells of a few thousand updates at a time, leading axes flattened to one."""
        count = self.nodes.size
        curvature = self.curvature.reshape(-1, count)
        lipschitz = self.lipschitz.reshape(-1, count - 1)
        for rows in row_blocks(len(curvature)):
            yield rows, Cells(self.nodes, self.width, curvature[rows], lipschitz[rows])


def curvature_cells(nodes: FloatArray, curvature: ArrayLike, lipschitz: ArrayLike) -> Cells:
    """Cells between checked nodes, with samples and constants that do not contradict each other."""
    curvature = sampled("curvature", curvature, nodes)
    constants = cellwise("lipschitz", lipschitz, nodes)
    same_updates(curvature=curvature.shape[:-1], lipschitz=constants.shape[:-1])
    width = np.diff(nodes)
    updates = np.broadcast_shapes(curvature.shape[:-1], constants.shape[:-1])
    cells = Cells(
        nodes,
        width,
        np.broadcast_to(curvature, (*updates, nodes.size)),
        np.broadcast_to(constants, (*updates, width.size)),
    )
    for _, block in cells.blocks():
        refute(block)
    return cells


def refute(cells: Cells) -> None:
    """Refuse constants that a pair of neighbouring samples contradicts."""
    with quiet():
        excess = np.abs(np.diff(cells.curvature, axis=-1))
        excess -= cells.lipschitz * cells.width
    largest = np.abs(cells.curvature).max(axis=-1, keepdims=True)
    contradicted = excess > ROUNDING * largest
    if contradicted.any():
        cell = int(np.nonzero(contradicted)[-1][0])
        raise LoopscopeError(
            f"lipschitz is smaller than the sampled change of curvature on cell {cell}: "
            "give constants valid on the whole cell"
        )


class DeviationBounds(NamedTuple):
    """lower ≤ C(a) ≤ upper for C(a) = ∫₀^a |φ''(s) - φ''(0)| ds."""

    lower: Floats
    upper: Floats


def curvature_deviation(nodes: ArrayLike, curvature: ArrayLike, lipschitz: ArrayLike) -> DeviationBounds:
    """Lower and upper partition sums of C(1) (Eqs. curvature-cell-terms and curvature-enclosure).

    With g = φ'' - φ''(0), h_ℓ the width of cell ℓ, T_ℓ = (h_ℓ/2)(|g(t_ℓ)| + |g(t_{ℓ+1})|) and
    P_ℓ = L_ℓ h_ℓ²/4:  Σ max{0, T_ℓ - P_ℓ} ≤ C(1) ≤ Σ (T_ℓ + P_ℓ).

    Args:
        nodes: 0 = t_0 < ... < t_N = 1.
        curvature: φ'' at the nodes, shape (..., N + 1).
        lipschitz: L_ℓ ≥ 0 with |φ''(u) - φ''(v)| ≤ L_ℓ |u - v| throughout cell ℓ (a bound of |φ'''| there),
            shape (N,) or (..., N), or one number for all. Sampled maxima of |φ'''| are not such bounds.

    >>> curvature_deviation([0.0, 0.5, 1.0], [-1.0, -1.5, -2.0], lipschitz=1.0)
    DeviationBounds(lower=0.375, upper=0.625)
    """
    cells = curvature_cells(partition("nodes", nodes), curvature, lipschitz)
    updates = cells.curvature.shape[:-1]
    lower, upper = np.empty(updates), np.empty(updates)
    with quiet():
        for rows, block in cells.blocks():
            trapezoid, slack = _terms(block)
            lower.reshape(-1)[rows] = np.maximum(trapezoid - slack, 0.0).sum(axis=-1)
            upper.reshape(-1)[rows] = (trapezoid + slack).sum(axis=-1)
    return DeviationBounds(plain(lower), plain(finite("the deviation", upper)))


def deviation_profile(nodes: ArrayLike, curvature: ArrayLike, lipschitz: ArrayLike) -> DeviationBounds:
    """The same sums up to every node: bounds of C(t_0) = 0, ..., C(t_N), shape (..., N + 1).

    >>> deviation_profile([0.0, 0.5, 1.0], [-1.0, -1.5, -2.0], lipschitz=1.0).upper
    array([0.    , 0.1875, 0.625 ])
    """
    return _profile(curvature_cells(partition("nodes", nodes), curvature, lipschitz))


def deviation_at(alpha: ArrayLike, nodes: ArrayLike, curvature: ArrayLike, lipschitz: ArrayLike) -> DeviationBounds:
    """Bounds of C(a) at any scale a, such as C(α*) in Proposition (Scale Error from Integrated Curvature Deviation).

    Up to the node t_ℓ before a these are the partition sums. Over the rest x = a - t_ℓ of the cell,
    | |g(s)| - |g(t_ℓ)| | ≤ L_ℓ (s - t_ℓ) puts ∫|g| within |g(t_ℓ)| x ± L_ℓ x²/2; and since C increases, the
    sum up to the next node is an upper bound too.

    Args:
        alpha: scales a in [0, 1], one per update.
        nodes: see `curvature_deviation`.
        curvature: see `curvature_deviation`.
        lipschitz: see `curvature_deviation`.

    >>> deviation_at(0.75, [0.0, 0.5, 1.0], [-1.0, -1.5, -2.0], lipschitz=1.0)
    DeviationBounds(lower=0.15625, upper=0.34375)
    """
    cells = curvature_cells(partition("nodes", nodes), curvature, lipschitz)
    alpha = unit_interval("alpha", as_floats("alpha", alpha))
    updates = cells.curvature.shape[:-1]
    same_updates(alpha=alpha.shape, curvature=updates)
    profile = _profile(cells)
    shape = np.broadcast_shapes(alpha.shape, updates)
    cell = np.broadcast_to(np.searchsorted(cells.nodes[1:-1], alpha, side="right"), shape)
    inside = alpha - cells.nodes[cell]
    constant = _pick(cells.lipschitz, cell)
    magnitude = _pick(np.abs(cells.curvature - cells.curvature[..., :1]), cell)
    middle = magnitude * inside
    slack = 0.5 * constant * inside**2
    lower = _pick(profile.lower, cell) + np.maximum(middle - slack, 0.0)
    upper = np.minimum(_pick(profile.upper, cell) + middle + slack, _pick(profile.upper, cell + 1))
    return DeviationBounds(plain(lower), plain(upper))


def _terms(cells: Cells) -> tuple[FloatArray, FloatArray]:
    """T_ℓ and P_ℓ of Eq. (curvature-cell-terms)."""
    magnitude = np.abs(cells.curvature - cells.curvature[..., :1])
    trapezoid = magnitude[..., :-1] + magnitude[..., 1:]
    trapezoid *= 0.5 * cells.width
    return trapezoid, 0.25 * cells.lipschitz * cells.width**2


def _profile(cells: Cells) -> DeviationBounds:
    with quiet():
        trapezoid, slack = _terms(cells)
        lower = np.cumsum(np.maximum(trapezoid - slack, 0.0), axis=-1)
        upper = np.cumsum(trapezoid + slack, axis=-1)
    origin = np.zeros((*upper.shape[:-1], 1))
    return DeviationBounds(
        np.concatenate([origin, lower], axis=-1),
        np.concatenate([origin, finite("the deviation", upper)], axis=-1),
    )


def _pick(samples: FloatArray, index: IntArray) -> FloatArray:
    """The entry of each update at its own index on the last axis."""
    spread = np.broadcast_to(samples, (*index.shape, samples.shape[-1]))
    return np.take_along_axis(spread, index[..., None], axis=-1)[..., 0]
