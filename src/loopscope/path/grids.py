"""The grids of scales that are measured, and choosing from a finite set of scales.

Section 4.1 and Appendix D for the grids, Appendix "Finite Action Sets" for the choices.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from loopscope.errors import LoopscopeError
from loopscope.path.arrays import (
    FloatArray,
    Floats,
    Ints,
    as_floats,
    finite,
    partition,
    plain,
    quiet,
    same_updates,
    sampled,
)

GRID_POINTS = 21
"""Points of the measured grid {0, 0.05, …, 1}."""

GRID: tuple[float, ...] = tuple(index / (GRID_POINTS - 1) for index in range(GRID_POINTS))
"""The grid on which φ is sampled; its every fifth point is the five-point action set."""

CURVATURE_SCALES: tuple[float, ...] = GRID[:: (GRID_POINTS - 1) // 4]
"""The five scales at which curvature along the path is stored, and the five-point action set itself."""

PATH_NODES = 257
"""The number of nodes of a stored FP64 path: 256 cells."""

DIFFERENCE_SPACINGS: tuple[float, ...] = (0.01, 0.005, 0.0025)
"""The spacings at which φ''' is checked against central differences of φ''."""

# Decimal midpoints such as 0.075 and decimal grid points such as 0.15 are not float64 numbers. Eight units in
# the last place of 1/2 cover the rounding of both, and are far below any scale difference that matters.
TIE_TOLERANCE = 2.0**-50


class GridAction(NamedTuple):
    """A grid point per update."""

    alpha: Floats
    """The scale."""
    index: Ints
    """Its position on the grid."""


class GridOptimum(NamedTuple):
    """The best grid point per update."""

    alpha: Floats
    """α*_A, the smallest maximising grid point."""
    index: Ints
    """Its position on the grid."""
    value: Floats
    """The sampled value there."""


def uniform_grid(points: int = GRID_POINTS) -> FloatArray:
    """`points` equally spaced scales k/(points - 1), each the float64 nearest to its exact value.

    The defaults give 𝒜 = {0, 0.05, ..., 1} of the step-scale evaluation; `uniform_grid(5)` is the
    intervention set ℬ = {0, 0.25, 0.5, 0.75, 1}.

    >>> uniform_grid(5)
    array([0.  , 0.25, 0.5 , 0.75, 1.  ])
    """
    if points < 2:
        raise LoopscopeError(f"points is {points}: a grid has at least the two scales 0 and 1")
    return np.arange(points) / (points - 1)


def scales_up_to(end: float) -> FloatArray:
    """The scales 0, 0.05, …, `end`: those of `GRID`, and as dense beyond 1.

    >>> scales_up_to(1.1)[-3:]
    array([1.  , 1.05, 1.1 ])
    """
    return np.arange(round(end * (GRID_POINTS - 1)) + 1) / (GRID_POINTS - 1)


def grid_optimum(grid: ArrayLike, values: ArrayLike) -> GridOptimum:
    """α*_A = min argmax of φ over the grid (Eq. grid-optimum); ties choose the smallest scale.

    Args:
        grid: 0 = a_0 < ... < a_m = 1.
        values: φ or U on the grid, shape (..., m + 1); a constant added to an update changes nothing but
            the value.

    >>> grid_optimum([0.0, 0.5, 1.0], [0.0, 0.25, 0.25])
    GridOptimum(alpha=0.5, index=1, value=0.25)
    """
    grid = partition("grid", grid)
    values = sampled("values", values, grid)
    index = values.argmax(axis=-1)
    return GridOptimum(plain(grid[index]), plain(index), plain(values.max(axis=-1)))


def nearest_action(grid: ArrayLike, scale: ArrayLike) -> GridAction:
    """The grid point nearest to a predicted scale, equal distances resolved toward the smaller point.

    Distances that differ by no more than 2 · 2⁻⁵⁰ count as equal, so that 0.075 on the grid of twentieths
    is a tie (and goes to 0.05) however its decimal digits were rounded.

    >>> nearest_action(uniform_grid(21), [0.075, 0.0751, 0.025, 1.0]).alpha
    array([0.05, 0.1 , 0.  , 1.  ])
    """
    grid = partition("grid", grid)
    spacing = np.diff(grid)
    # A tolerance beyond the cell itself would skip points of an extremely fine grid.
    boundary = grid[:-1] + 0.5 * spacing + np.minimum(TIE_TOLERANCE, spacing / 8)
    index = np.searchsorted(boundary, as_floats("scale", scale), side="left")
    return GridAction(plain(grid[index]), plain(index))


def grid_regret(grid: ArrayLike, values: ArrayLike, scale: ArrayLike) -> Floats:
    """φ(α*_A) - φ(nearest grid action to the scale), as in Table "Local quadratic scale prediction".

    >>> grid_regret([0.0, 0.5, 1.0], [0.0, 0.25, 0.125], 0.9)
    0.125
    """
    nodes = partition("grid", grid)
    values = sampled("values", values, nodes)
    index = np.asarray(nearest_action(nodes, scale).index)
    same_updates(values=values.shape[:-1], scale=index.shape)
    index = np.broadcast_to(index, np.broadcast_shapes(index.shape, values.shape[:-1]))
    spread = np.broadcast_to(values, (*index.shape, nodes.size))
    chosen = np.take_along_axis(spread, index[..., None], axis=-1)[..., 0]
    with quiet():
        return plain(finite("the regret", values.max(axis=-1) - chosen))
