"""Curvature samples and Lipschitz constants on one partition, checked against each other.

The statements on partition cells suppose |φ''(u) - φ''(v)| ≤ L_ℓ |u - v| throughout cell ℓ. Samples cannot
prove that, but they can refute it, and a refuted constant gives no bound.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from loopscope._errors import LoopscopeError
from loopscope.path._arrays import FloatArray, cellwise, partition, quiet, same_updates, sampled

# Curvatures may come from FP32 readouts: a change within this fraction of the largest curvature of the
# update is rounding, not a contradiction.
ROUNDING = 1e-6


class Cells(NamedTuple):
    """Shapes: nodes (m,), width (m - 1,), curvature (..., m), lipschitz () or (..., m - 1)."""

    nodes: FloatArray
    width: FloatArray
    curvature: FloatArray
    lipschitz: FloatArray


def curvature_cells(nodes: ArrayLike, curvature: ArrayLike, lipschitz: ArrayLike) -> Cells:
    """Validated cells of a partition of [0, 1]."""
    nodes = partition("nodes", nodes)
    curvature = sampled("curvature", curvature, nodes)
    constants = cellwise("lipschitz", lipschitz, nodes)
    same_updates(curvature=curvature.shape[:-1], lipschitz=constants.shape[:-1])
    width = np.diff(nodes)
    refute(width, curvature, constants)
    return Cells(nodes, width, curvature, constants)


def refute(width: FloatArray, curvature: FloatArray, constants: FloatArray) -> None:
    """Refuse constants that a pair of neighbouring samples contradicts."""
    with quiet():
        excess = np.abs(np.diff(curvature, axis=-1))
        excess -= constants * width
    largest = np.abs(curvature).max(axis=-1, keepdims=True, initial=0.0)
    contradicted = excess > ROUNDING * largest
    if contradicted.any():
        cell = int(np.nonzero(contradicted)[-1][0])
        raise LoopscopeError(
            f"lipschitz is smaller than the sampled change of curvature on cell {cell}: "
            "give constants valid on the whole cell"
        )
