"""φ between scales at which its derivatives are known: one polynomial for each example, and how far it may be off.

At `NODES` derivatives are taken anyway, for the curvature along the path. With φ(0) = 0, φ' and φ'' at those five
scales fix a polynomial p of degree ten, so that the other scales of the grid and every predicted scale need no
evaluation of the readout. For a small update that is more exact than evaluating: a gain is the small difference of two
rounded log probabilities, its derivatives are not.

Two differences are measured, each against evaluations that the polynomial in question did not use:

- `truncation`: the polynomial q through the derivatives at 0, ½ and 1 alone, held against p, which knows those at ¼
  and ¾ as well. With e = φ' − q', which is t²(t−½)²(t−1)² φ⁽⁷⁾/6!, the quarters lie where e is nearly largest, and the
  error of p, with φ⁽¹¹⁾ in the place of φ⁽⁷⁾, is smaller by far than that of q.
- `residual`: p held against φ itself at ¼, ½, ¾ and 1, which the same passes give and no polynomial uses. It contains
  what the readout rounds, and catches a readout whose derivatives are not those of its values.

Weights are exact rationals, rounded once. Shapes: N examples, K scales, C conditions, J powers of α.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.path import CURVATURE_SCALES, GRID

NODES = CURVATURE_SCALES
_COARSE = slice(None, None, 2)


class Polynomials:
    """p(α) = Σ_j c_j α^j of each example, with p(0) = 0 and the first two derivatives given at some scales.

    >>> slopes = torch.tensor([[[1.0, -1.0]], [[-2.0, -2.0]]], dtype=torch.float64)     # of α − α², at 0 and 1
    >>> Polynomials((0.0, 1.0), slopes).at([0.5, 1.0]).tolist()
    [[0.25, 0.0]]
    """

    def __init__(self, nodes: Sequence[float], derivatives_2NK: Tensor) -> None:
        basis_CJ = derivatives_2NK.new_tensor(_basis(tuple(nodes)))
        self._powers_NJ = derivatives_2NK.permute(1, 0, 2).flatten(1) @ basis_CJ

    def at(self, scales: Sequence[float]) -> Tensor:
        """P at common scales, [N, K]."""
        return self._horner(self._powers_NJ.new_tensor(scales)[None, :])

    def at_own(self, scales_N: Tensor) -> Tensor:
        """P of each example at its scale, [N]."""
        return self._horner(scales_N[:, None])[:, 0]

    def _horner(self, scales: Tensor) -> Tensor:
        total = torch.zeros_like(self._powers_NJ[:, :1] * scales)
        for power_N in reversed(self._powers_NJ.unbind(1)):
            total = total * scales + power_N[:, None]
        return total


class Interpolation(NamedTuple):
    """What the derivatives at `NODES` give for each example.

    Attributes:
        polynomials: p of each.
        truncation_N: the largest difference between p and the polynomial that does not use ¼ and ¾, on the grid.
        residual_N: the largest difference between p and φ at ¼, ½, ¾ and 1.
    """

    polynomials: Polynomials
    truncation_N: Tensor
    residual_N: Tensor


def interpolate(stack_3NK: Tensor) -> Interpolation:
    """From the utility and its first two derivatives at `NODES`, [3, N, 5]."""
    utility_NK, derivatives_2NK = stack_3NK[0], stack_3NK[1:]
    fine = Polynomials(NODES, derivatives_2NK)
    coarse = Polynomials(NODES[_COARSE], derivatives_2NK[..., _COARSE])
    gains_NK = utility_NK[:, 1:] - utility_NK[:, :1]
    return Interpolation(
        fine, (fine.at(GRID) - coarse.at(GRID)).abs().amax(1), (fine.at(NODES[1:]) - gains_NK).abs().amax(1)
    )


@cache
def _basis(nodes: tuple[float, ...]) -> list[list[float]]:
    """By condition (φ' at the nodes, then φ'' there) the powers of the polynomial that meets it alone, [C, J].

    >>> _basis((0.0, 1.0))[1]                     # p' = 3α² − 2α³ rises from 0 to 1 and is flat at both ends
    [0.0, 0.0, 0.0, 1.0, -0.5]
    """
    conditions = [(Fraction(node), order) for order in (1, 2) for node in nodes]
    size = len(conditions)
    # Rows are conditions, columns the powers 1 … C, then what each condition asks for, one at a time.
    system = [
        [_derivative(power, *condition) for power in range(1, size + 1)] + [Fraction(row == c) for c in range(size)]
        for row, condition in enumerate(conditions)
    ]
    for column in range(size):
        pivot = next(row for row in range(column, size) if system[row][column])
        system[column], system[pivot] = system[pivot], system[column]
        head = system[column][column]
        system[column] = [entry / head for entry in system[column]]
        for row in range(size):
            factor = system[row][column]
            if row != column and factor:
                system[row] = [a - factor * b for a, b in zip(system[row], system[column], strict=True)]
    return [[0.0, *(float(system[power][size + c]) for power in range(size))] for c in range(size)]


def _derivative(power: int, scale: Fraction, order: int) -> Fraction:
    """Of α^power."""
    factor = Fraction(1)
    for step in range(order):
        factor *= power - step
    return factor * scale ** (power - order) if factor else Fraction(0)
