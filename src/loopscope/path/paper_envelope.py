"""The paper's bounds of −φ'' and |φ'''| on cells of [0, 1] (Appendix "Derivative envelopes and refinement").

The paper gives the construction in words: global moment bounds, a fourth-derivative bound on each of 256 cells, and
endpoint values propagated across each cell. Here the moment bounds are those of a distribution on an interval of width
R, the range of a token's logit displacement v, averaged over tokens:

    −φ'' ≤ R²/4,    |φ'''| ≤ R³/(6√3),    |φ''''| ≤ R⁴/8

(Popoviciu; two points attain all three; κ₄ = μ₄ − 3V² lies between −2V² ≥ −R⁴/8 and μ₄ ≤ R⁴/12). With K the last of
them and h a cell's width, |φ'''| on the cell is at most min{|φ'''(l)| + Kx, |φ'''(r)| + K(h − x)}, so at most
(|φ'''(l)| + |φ'''(r)| + Kh)/2; with that constant L the same argument bounds −φ'' from both sides. All of it holds for
real numbers. It is looser than `readout.affine.envelope`, because R⁴ counts the vocabulary's two extreme entries as if
they had all the probability.

Shapes: N paths, m nodes, m − 1 cells.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from loopscope.path.arrays import FloatArray

# Derivatives at the nodes are float64 results: every bound is widened by this much of its size.
ALLOWANCE = 1e-11


class PaperEnvelope(NamedTuple):
    """Bounds on each cell, shape (N, m − 1)."""

    curvature_upper: FloatArray
    """Of −φ'', from above."""
    curvature_lower: FloatArray
    """Of −φ'', from below; at least 0, which holds for concave paths."""
    third: FloatArray
    """Of |φ'''|."""


def paper_envelope(
    nodes: FloatArray, curvature: FloatArray, third: FloatArray, range_moments: FloatArray
) -> PaperEnvelope:
    """The bounds from derivatives at the nodes and from ranges.

    Args:
        nodes: evenly spaced, 0 = t_0 < … < t_N = 1.
        curvature: φ'' at the nodes, shape (N, m).
        third: φ''' at the nodes, likewise.
        range_moments: the means of R², R³ and R⁴ over the tokens of each path, shape (N, 3).

    >>> import numpy as np
    >>> two = np.array([[1.0, 1.0, 1.0]])  # one token, two equally likely logits that part at speed 1
    >>> found = paper_envelope(np.array([0.0, 1.0]), np.array([[-0.25, -0.25]]), np.zeros((1, 2)), two)
    >>> found.third.round(4), found.curvature_upper.round(4)
    (array([[0.0625]]), array([[0.25]]))
    """
    h = nodes[1] - nodes[0]
    square, cube, fourth = (range_moments[:, column, None] for column in range(3))
    largest = _across(np.abs(third), 0.125 * fourth * h)
    bound = np.minimum(largest, cube / (6.0 * math.sqrt(3.0))) * (1.0 + ALLOWANCE)
    spread = -curvature
    upper = np.minimum(_across(spread, bound * h), 0.25 * square) * (1.0 + ALLOWANCE)
    lower = -_across(-spread, bound * h)
    return PaperEnvelope(upper, np.maximum(lower - ALLOWANCE * upper, 0.0), bound)


def _across(values: FloatArray, rise: FloatArray) -> FloatArray:
    """What a function can reach on each cell if it has these values at the nodes and rises by no more than `rise`."""
    left, right = values[:, :-1], values[:, 1:]
    # By rounding the ends may differ by more than the rise.
    reached: FloatArray = np.maximum(0.5 * (left + right + rise), np.maximum(left, right))
    return reached
