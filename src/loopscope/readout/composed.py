"""Paths made of other paths: several joined, values remembered or interpolated, and means over groups of examples.

Shapes: N examples of the path underneath, R groups of them, K scales.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from loopscope.readout.general.path import NonlinearPath
from loopscope.readout.path import UtilityPath


class _ManyExamples(UtilityPath):
    """A path that always keeps its example axis."""

    max_order = 4

    @property
    def single(self) -> bool:
        """Never: the example axis stays."""
        return False


class JoinedPath(_ManyExamples):
    """The examples of several nonlinear paths, one after the other: groups of sequences whose logits fit."""

    def __init__(self, paths: Sequence[NonlinearPath]) -> None:
        self._paths = tuple(paths)

    @property
    def examples(self) -> int:
        """Those of all paths."""
        return sum(path.examples for path in self._paths)

    def per_token(self) -> JoinedPath:
        """The same paths with every reference token as one example."""
        return JoinedPath([path.per_token() for path in self._paths])

    def _initial(self) -> Tensor:
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


class RememberedPath(_ManyExamples):
    """Another path whose values at common scales are evaluated once, with the highest order requested first.

    `know` adds what is known beforehand.
    """

    def __init__(self, path: UtilityPath, initial_N: Tensor) -> None:
        self._path, self._given_N = path, initial_N
        self._known: dict[float, Tensor] = {}

    @property
    def examples(self) -> int:
        """Those of the path itself."""
        return int(self._given_N.shape[0])

    def _initial(self) -> Tensor:
        return self._given_N

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


class InterpolatedPath(_ManyExamples):
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

    @property
    def examples(self) -> int:
        """Those of the path itself."""
        return self._path.examples

    def _initial(self) -> Tensor:
        return self._path.initial_N

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


class MeanPath(_ManyExamples):
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
        self._given_R, self._sequences = initial_R, sequences

    @property
    def examples(self) -> int:
        """One per sequence."""
        return int(self._given_R.shape[0])

    def _initial(self) -> Tensor:
        return self._given_R

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
