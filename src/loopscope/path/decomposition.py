"""The gain as slope plus accumulated curvature: Proposition (Pathwise Progress Decomposition)."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from loopscope.errors import LoopscopeError
from loopscope.path.arrays import (
    FloatArray,
    Floats,
    finite,
    increasing,
    per_update,
    plain,
    quiet,
    row_blocks,
    same_updates,
    sampled,
)
from loopscope.path.deviation import Cells, curvature_cells

# Cubic interpolation of φ'' through the four nodes around a cell; one node fewer gives the error estimate.
STENCIL = 4


class PathwiseDecomposition(NamedTuple):
    """φ(α) against αA + ∫₀^α (α - s) φ''(s) ds, the integral taken by quadrature on the given nodes."""

    correction: Floats
    """The curvature correction ∫₀^α (α - s) φ''(s) ds."""
    expected: Floats
    """αA + correction, what the decomposition says the gain is."""
    residual: Floats
    """gain - expected."""
    error: Floats
    """How far the quadrature may be off: a bound where Lipschitz constants of φ'' were given, else the
    difference between two interpolation orders over the cells, an estimate that supposes φ'' smooth at the
    node spacing."""


def pathwise_decomposition(
    nodes: ArrayLike,
    curvature: ArrayLike,
    slope: ArrayLike,
    gain: ArrayLike,
    lipschitz: ArrayLike | None = None,
) -> PathwiseDecomposition:
    """Check φ(α) = αA + ∫₀^α (α - s) φ''(s) ds (Eq. pathwise-progress) with α the last node.

    The weight α - s is integrated exactly against a piecewise polynomial interpolant of φ''. Without
    `lipschitz` the interpolant is cubic (through four nodes) and `error` sums its difference from the
    quadratic one over the cells. With `lipschitz` it is linear, and `error` is a bound: on a cell [l, r] of
    width h whose endpoint values differ by d h, a function with Lipschitz constant L ≥ |d| strays from its
    chord by an integral of at most (L² - d²) h² / (4L), and the weight there is at most α - l. Neither covers
    rounding.

    A finite-step failure has correction < -A < 0 at α = 1.

    Args:
        nodes: 0 = t_0 < ... < t_N = α ≤ 1.
        curvature: φ'' at the nodes, shape (..., N + 1).
        slope: A = φ'(0).
        gain: φ(α), so ΔU when the last node is 1.
        lipschitz: Lipschitz constants of φ'' (bounds of |φ'''|) per cell, shape (N,) or (..., N).

    >>> pathwise_decomposition([0.0, 0.5, 1.0], [-2.0, -2.0, -2.0], slope=0.5, gain=-0.5)
    PathwiseDecomposition(correction=-1.0, expected=-0.5, residual=0.0, error=0.0)
    """
    nodes = increasing("nodes", nodes)
    if nodes[-1] > 1:
        raise LoopscopeError(f"nodes end at {nodes[-1]}: scales lie in [0, 1]")
    curvature = sampled("curvature", curvature, nodes)
    slope, gain = per_update(slope=slope, gain=gain)
    same_updates(slope=slope.shape, gain=gain.shape, curvature=curvature.shape[:-1])
    with quiet():
        if lipschitz is None:
            correction = np.einsum("...j,j->...", curvature, cell_weights(nodes, STENCIL).sum(axis=1))
            error = _estimated_error(nodes, curvature)
        else:
            correction = np.einsum("...j,j->...", curvature, cell_weights(nodes, 2).sum(axis=1))
            error = _chord_error(curvature_cells(nodes, curvature, lipschitz))
        expected = nodes[-1] * slope + correction
        residual = finite("the decomposition", gain - expected)
    return PathwiseDecomposition(plain(correction), plain(expected), plain(residual), plain(error))


def cell_weights(nodes: FloatArray, stencil: int) -> FloatArray:
    """Weights W with Σ_j f(t_j) W[j, ℓ] = ∫ (α - s) p(s) ds over cell ℓ, p interpolating `stencil` nodes around it."""
    return _cell_weights(nodes.tobytes(), stencil)


@lru_cache(maxsize=8)  # the same nodes for every question of a pass
def _cell_weights(of_nodes: bytes, stencil: int) -> FloatArray:
    nodes = np.frombuffer(of_nodes)
    points = min(stencil, nodes.size)
    weights = np.zeros((nodes.size, nodes.size - 1))
    powers = np.arange(points)
    for cell, width in enumerate(np.diff(nodes)):
        start = min(max(cell - (points - 2) // 2, 0), nodes.size - points)
        members = slice(start, start + points)
        local = (nodes[members] - nodes[cell]) / width
        left = (nodes[-1] - nodes[cell]) / width
        # ∫₀¹ (left - x) x^k dx for each power k of the local coordinate x = (s - t_cell) / width.
        moments = left / (powers + 1) - 1 / (powers + 2)
        weights[members, cell] = width**2 * np.linalg.solve(np.vander(local, increasing=True).T, moments)
    weights.setflags(write=False)
    return weights


def _estimated_error(nodes: FloatArray, curvature: FloatArray) -> FloatArray:
    """Σ_ℓ |cubic - quadratic| over the cells: summed by magnitude, since cells may cancel by accident."""
    difference = cell_weights(nodes, STENCIL) - cell_weights(nodes, STENCIL - 1)
    samples = curvature.reshape(-1, nodes.size)
    error = np.empty(curvature.shape[:-1])
    for rows in row_blocks(len(samples)):
        # Not `@`: on blocks this small the threads of BLAS would mostly wait for each other.
        cells = np.einsum("ij,jk->ik", samples[rows], difference)
        error.reshape(-1)[rows] = np.abs(cells).sum(axis=-1)
    return error


def _chord_error(cells: Cells) -> FloatArray:
    """Σ (α - t_ℓ) (L_ℓ² - d_ℓ²) h_ℓ² / (4 L_ℓ), with d_ℓ the slope of the chord of φ'' over cell ℓ."""
    chord = np.abs(np.diff(cells.curvature, axis=-1)) / cells.width
    ratio = np.divide(chord, cells.lipschitz, out=np.ones_like(chord), where=chord < cells.lipschitz)
    reach = cells.lipschitz * (1 - ratio**2) * cells.width**2 / 4
    error: FloatArray = np.sum((cells.nodes[-1] - cells.nodes[:-1]) * reach, axis=-1)
    return error
