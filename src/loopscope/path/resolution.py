"""How far a grid optimum can be from the continuous one: Proposition (Grid Resolution)."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from loopscope.path._arrays import Floats, as_floats, non_negative, partition, plain


class GridResolution(NamedTuple):
    """The two bounds have separate hypotheses; see `grid_resolution`."""

    spacing: float
    """h_A, the widest gap of the grid."""
    location: float
    """|α*_A - α*| ≤ h_A, for a continuous concave path with a unique maximiser."""
    value: Floats
    """φ(α*) - φ(α*_A) ≤ B h_A²/8, for any C² path with |φ''| ≤ B on [0, 1]."""


def grid_resolution(grid: ArrayLike, curvature_bound: ArrayLike) -> GridResolution:
    """Location and value bounds of a grid's resolution (Proposition (Grid Resolution)).

    The location bound supposes concavity and a unique maximiser, the value bound neither: it needs
    |φ''| ≤ B on [0, 1] and an interior maximiser, and holds trivially for a maximiser at 0 or 1, which the
    grid contains.

    Args:
        grid: 0 = a_0 < ... < a_m = 1.
        curvature_bound: B ≥ 0, one number or one per update.

    >>> grid_resolution([0.0, 0.5, 1.0], 4.0)
    GridResolution(spacing=0.5, location=0.5, value=0.125)
    """
    spacing = float(np.diff(partition("grid", grid)).max())
    bound = non_negative("curvature_bound", as_floats("curvature_bound", curvature_bound))
    return GridResolution(spacing, spacing, plain(bound * spacing**2 / 8))
