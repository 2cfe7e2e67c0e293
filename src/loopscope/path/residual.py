"""Signed-residual envelope: Eq. (signed-residual-envelope), Proposition (Signed-Residual Approximation Bounds)."""

import numpy as np
from numpy.typing import ArrayLike

from loopscope.path._arrays import (
    Floats,
    as_floats,
    cellwise,
    finite,
    non_negative,
    partition,
    plain,
    quiet,
    row_blocks,
    same_updates,
    sampled,
)


def residual_envelope(
    nodes: ArrayLike,
    slopes: ArrayLike,
    quadratic: ArrayLike,
    lipschitz: ArrayLike,
    deviation: ArrayLike | None = None,
) -> Floats:
    """S̄, a bound of |e(a)| = |φ'(a) - q'(a)| on [0, 1] that keeps cancelling curvature deviations.

    With e(t) = φ'(t) - A - 2Qt and |φ'''| ≤ L_ℓ throughout cell ℓ,
    S̄ = min{ C̄, max_ℓ [ max{|e(t_ℓ)|, |e(t_{ℓ+1})|} + L_ℓ h_ℓ²/8 ] }.
    S̄ takes the place of C(1) in `scale_bound`, `regret_bound` and `endpoint_bound`.

    Args:
        nodes: 0 = t_0 < ... < t_N = 1.
        slopes: φ' at the nodes, shape (..., N + 1); the first is A.
        quadratic: Q = φ''(0)/2.
        lipschitz: L_ℓ ≥ 0 bounding |φ'''| on each cell, shape (N,) or (..., N), or one number for all.
        deviation: C̄ from `curvature_deviation(...).upper`; without it the minimum is not taken.

    >>> residual_envelope([0.0, 0.5, 1.0], [1.0, 0.5, 0.25], quadratic=-0.5, lipschitz=2.0)
    0.3125
    """
    nodes = partition("nodes", nodes)
    slopes = sampled("slopes", slopes, nodes)
    quadratic = as_floats("quadratic", quadratic)
    constants = cellwise("lipschitz", lipschitz, nodes)
    same_updates(slopes=slopes.shape[:-1], quadratic=quadratic.shape, lipschitz=constants.shape[:-1])
    shape = np.broadcast_shapes(slopes.shape[:-1], quadratic.shape, constants.shape[:-1])
    envelope = np.empty(shape)
    quadratic = np.broadcast_to(quadratic, shape).reshape(-1, 1)
    slopes = np.broadcast_to(slopes, (*shape, nodes.size)).reshape(-1, nodes.size)
    width = np.diff(nodes)
    constants = np.broadcast_to(constants, (*shape, width.size)).reshape(-1, width.size)
    with quiet():
        for rows in row_blocks(len(slopes)):
            residual = np.abs(slopes[rows] - slopes[rows, :1] - 2 * quadratic[rows] * nodes)
            ends = np.maximum(residual[:, :-1], residual[:, 1:])
            envelope.reshape(-1)[rows] = (ends + 0.125 * constants[rows] * width**2).max(axis=-1)
    finite("the residual", envelope)
    if deviation is not None:
        upper = non_negative("deviation", as_floats("deviation", deviation))
        same_updates(slopes=shape, deviation=upper.shape)
        envelope = np.minimum(envelope, upper)
    return plain(envelope)
