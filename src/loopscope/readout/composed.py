"""Paths made of other paths: several joined, values remembered or interpolated, and means over groups of examples.

**Interpolation.** At `NODES` derivatives are taken anyway, for the curvature along the path. With φ(0) = 0, φ' and
φ'' at those five scales fix a polynomial p of degree ten, so that the other scales of the grid and every predicted
scale need no evaluation of the readout. For a small update that is more exact than evaluating: a gain is the small
difference of two rounded log probabilities, its derivatives are not.

Two differences are measured, each against evaluations that the polynomial in question did not use:

- `truncation`: the polynomial q through the derivatives at 0, ½ and 1 alone, held against p, which knows those at ¼
  and ¾ as well. With e = φ' − q', which is t²(t−½)²(t−1)² φ⁽⁷⁾/6!, the quarters lie where e is nearly largest, and the
  error of p, with φ⁽¹¹⁾ in the place of φ⁽⁷⁾, is smaller by far than that of q.
- `residual`: p held against φ itself at ¼, ½, ¾ and 1, which the same passes give and no polynomial uses. It contains
  what the readout rounds, and catches a readout whose derivatives are not those of its values.

Weights are exact rationals, rounded once.

Shapes: N examples of the path underneath, R groups of them, K scales, C conditions, J powers of α.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from loopscope.path import CURVATURE_SCALES, GRID
from loopscope.readout.general.path import NonlinearPath
from loopscope.readout.path import UtilityPath

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

    They are the integrals of Hermite's: with ℓ(α) = Π (α − b)/(a − b) over the nodes b other than a, and ℓ' its slope
    at a, ℓ² (1 − 2ℓ'(α − a)) has the value 1 at a and ℓ² (α − a) the slope 1; nothing else at any node.

    >>> _basis((0.0, 1.0))[1]                     # p' = 3α² − 2α³ rises from 0 to 1 and is flat at both ends
    [0.0, 0.0, 0.0, 1.0, -0.5]
    """
    exact, values, slopes = [Fraction(node) for node in nodes], [], []
    for a in exact:
        square, slope = np.array([Fraction(1)]), Fraction(0)
        for b in exact:
            if b != a:
                line = np.array([-b, 1]) / (a - b)
                square, slope = np.convolve(np.convolve(square, line), line), slope + 1 / (a - b)
        values.append(np.convolve(square, [1 + 2 * slope * a, -2 * slope]))
        slopes.append(np.convolve(square, [-a, Fraction(1)]))
    return [[0.0, *(float(c / (power + 1)) for power, c in enumerate(each))] for each in values + slopes]


class JoinedPath(UtilityPath):
    """The examples of several nonlinear paths, one after the other: groups of sequences whose logits fit."""

    def __init__(self, paths: Sequence[NonlinearPath]) -> None:
        self._paths, self.examples = tuple(paths), sum(path.examples for path in paths)

    def per_token(self) -> JoinedPath:
        """The same paths with every reference token as one example."""
        return JoinedPath([path.per_token() for path in self._paths])

    @cached_property
    def initial_N(self) -> Tensor:  # noqa: N802 - its shape
        """U(H) of each example, float64."""
        return torch.cat([path.initial_N for path in self._paths])

    def at_scales(self, scales: list[float], order: int) -> Tensor:
        """Derivatives 0..order at the scales."""
        return torch.cat([path.at_scales(scales, order) for path in self._paths], 1)

    def with_utility(self, scales: Sequence[float], order: int) -> Tensor:
        """U and its derivatives, as `NonlinearPath` gives them."""
        return torch.cat([path.with_utility(scales, order) for path in self._paths], 1)

    def at_own(self, scales_N: Tensor, order: int) -> Tensor:
        """Derivatives 0..order of each example at its scale."""
        shares = torch.split(scales_N, [path.examples for path in self._paths])
        return torch.cat([path.at_own(share, order) for path, share in zip(self._paths, shares, strict=True)], 1)


class RememberedPath(UtilityPath):
    """Another path whose values at common scales are evaluated once, with the highest order requested first.

    `know` adds what is known beforehand.
    """

    def __init__(self, path: UtilityPath, initial_N: Tensor) -> None:
        self._path, self.initial_N, self.examples = path, initial_N, len(initial_N)
        self._known: dict[float, Tensor] = {}

    def know(self, scales: Sequence[float], stack: Tensor) -> None:
        """Derivatives 0, 1, … at some scales, [order+1, N, K]; those of higher order replace others."""
        for index, scale in enumerate(scales):
            if scale not in self._known or self._known[scale].shape[0] < stack.shape[0]:
                self._known[scale] = stack[..., index]

    def at_scales(self, scales: list[float], order: int) -> Tensor:
        """Derivatives 0..order at the scales; what is not known yet is evaluated."""
        unknown = [s for s in scales if s not in self._known or self._known[s].shape[0] <= order]
        if unknown:
            self.know(unknown, self._path.at_scales(unknown, order))
        return torch.stack([self._known[scale][: order + 1] for scale in scales], -1)

    def at_own(self, scales_N: Tensor, order: int) -> Tensor:
        """Derivatives 0..order of each example at its scale, always evaluated."""
        return self._path.at_own(scales_N, order)


class InterpolatedPath(UtilityPath):
    """Another path whose φ at per-example scales is interpolated, except for some examples.

    Args:
        path: the path itself.
        own: from a scale of each example to φ there, [N] → [N].
        evaluated: the examples that are evaluated, bool [N], and a path of those alone; None where there are none.
    """

    def __init__(
        self, path: UtilityPath, own: Callable[[Tensor], Tensor], evaluated: tuple[Tensor, UtilityPath] | None
    ) -> None:
        self._path, self._own, self._evaluated = path, own, evaluated
        self.initial_N, self.examples = path.initial_N, path.examples

    def at_scales(self, scales: list[float], order: int) -> Tensor:
        """Derivatives 0..order at the scales, evaluated."""
        return self._path.at_scales(scales, order)

    def at_own(self, scales_N: Tensor, order: int) -> Tensor:
        """Derivatives 0..order of each example at its scale; only φ is known beforehand."""
        if order > 0:
            return self._path.at_own(scales_N, order)
        found_N = self._own(scales_N)
        if self._evaluated is not None:
            member_N, path = self._evaluated
            found_N[member_N] = path.at_own(scales_N[member_N], 0)[0]
        return found_N.unsqueeze(0)


class MeanPath(UtilityPath):
    """φ of every sequence: the mean of its tokens' paths, with U(H) as the readout of the state gave it.

    Args:
        tokens: the path of every token.
        mean: averages [N, …] over the tokens of each sequence, [R, …].
        sequence_N: the sequence of each token.
        initial_R: U(H) of every sequence.
        sequences: the same paths as one path of sequences, where that is cheaper at per-sequence scales.
    """

    def __init__(
        self,
        tokens: RememberedPath,
        mean: Callable[[Tensor], Tensor],
        sequence_N: Tensor,
        initial_R: Tensor,
        sequences: UtilityPath | None = None,
    ) -> None:
        self._tokens, self._average, self._sequence_N = tokens, mean, sequence_N
        self._sequences, self.initial_N, self.examples = sequences, initial_R, len(initial_R)

    def at_scales(self, scales: list[float], order: int) -> Tensor:
        """Derivatives 0..order at the scales."""
        return self._mean(self._tokens.at_scales(scales, order))

    def at_own(self, scales_N: Tensor, order: int) -> Tensor:
        """Derivatives 0..order of each sequence at its scale."""
        if self._sequences is not None:
            # Tokens of a sequence share its scale, and one readout of its state serves them all.
            return self._sequences.at_own(scales_N, order)
        return self._mean(self._tokens.at_own(scales_N[self._sequence_N], order))

    def _mean(self, stack_KN: Tensor) -> Tensor:
        return self._average(stack_KN.transpose(0, 1)).transpose(0, 1)
