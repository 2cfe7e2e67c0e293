"""Curvature samples and Lipschitz constants on one partition, checked against each other.

The statements on partition cells suppose |φ''(u) - φ''(v)| ≤ L_ℓ |u - v| throughout cell ℓ. Samples cannot
prove that, but they can refute it, and a refuted constant gives no bound.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from loopscope._errors import LoopscopeError
from loopscope.path._arrays import FloatArray, cellwise, quiet, row_blocks, same_updates, sampled

# Curvatures may come from FP32 readouts: a change within this fraction of the largest curvature of the
# update is rounding, not a contradiction.
ROUNDING = 1e-6


class Cells(NamedTuple):
    """Shapes: nodes (m,), width (m - 1,), curvature (..., m), lipschitz (..., m - 1)."""

    nodes: FloatArray
    width: FloatArray
    curvature: FloatArray
    lipschitz: FloatArray

    def blocks(self) -> Iterator[tuple[slice, "Cells"]]:
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
