"""The utility paths of a batch for one update: tokens, sequences and questions share every evaluation of the readout.

    token → mean over a sequence's tokens → the question itself, or log-softmax over its options

φ of every reference token is evaluated once at each scale and kept; the coarser paths are made from it.

Shapes: N reference tokens, R sequences, B questions, K scales.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from loopscope.measure.layout import Layout
from loopscope.measure.utility import Reading, correct_rows, local_positions, pieces
from loopscope.models.protocol import AffineHead, LoopedModel
from loopscope.readout.affine import AffinePath, affine_path_from_states
from loopscope.readout.nonlinear import NonlinearPath, nonlinear_path_from_states
from loopscope.readout.options import option_path
from loopscope.readout.utility_path import UtilityPath

_GPU_BLOCK = 1 << 24
"""Logits of a block on a GPU: 128 MiB in float64."""

SequencePath: TypeAlias = "AffinePath | JoinedPath"


class JoinedPath(UtilityPath):
    """The examples of several nonlinear paths, one after the other: pieces of a batch whose logits fit."""

    max_order = 4

    def __init__(self, parts: Sequence[NonlinearPath]) -> None:
        self._parts = tuple(parts)

    @property
    def examples(self) -> int:
        """Those of all parts."""
        return sum(part.examples for part in self._parts)

    @property
    def single(self) -> bool:
        """Never: the example axis stays."""
        return False

    def per_token(self) -> JoinedPath:
        """The same paths with every reference token an example of its own."""
        return JoinedPath([part.per_token() for part in self._parts])

    def _initial(self) -> Tensor:
        return torch.cat([part._initial_cached for part in self._parts])

    def _stack(self, scales: list[float], order: int) -> Tensor:
        return torch.cat([part._stack(scales, order) for part in self._parts], 1)

    def _own(self, scales_N: Tensor, order: int) -> Tensor:
        shares = torch.split(scales_N, [part.examples for part in self._parts])
        return torch.cat([part._own(share, order) for part, share in zip(self._parts, shares, strict=True)], 1)


class RememberedPath(UtilityPath):
    """Another path whose values at common scales are evaluated once, with the highest order asked for first."""

    max_order = 4

    def __init__(self, path: UtilityPath, initial_N: Tensor) -> None:
        self._path, self._initial_N = path, initial_N
        self._known: dict[float, Tensor] = {}

    @property
    def examples(self) -> int:
        """Those of the path itself."""
        return int(self._initial_N.shape[0])

    @property
    def single(self) -> bool:
        """Never: the example axis stays."""
        return False

    def _initial(self) -> Tensor:
        return self._initial_N

    def _stack(self, scales: list[float], order: int) -> Tensor:
        unknown = [s for s in scales if s not in self._known or self._known[s].shape[0] <= order]
        if unknown:
            found = self._path._stack(unknown, order)
            self._known.update((scale, found[..., index]) for index, scale in enumerate(unknown))
        return torch.stack([self._known[scale][: order + 1] for scale in scales], -1)

    def _own(self, scales_N: Tensor, order: int) -> Tensor:
        return self._path._own(scales_N, order)


class MeanPath(UtilityPath):
    """φ of every sequence: the mean of its tokens' paths, with U(H) as the readout of the state gave it."""

    max_order = 4

    def __init__(self, tokens: RememberedPath, sequences: SequencePath, layout: Layout, scores_R: Tensor) -> None:
        self._tokens, self._sequences, self._layout, self._scores_R = tokens, sequences, layout, scores_R

    @property
    def examples(self) -> int:
        """One a sequence."""
        return int(self._scores_R.shape[0])

    @property
    def single(self) -> bool:
        """Never: the example axis stays."""
        return False

    def _initial(self) -> Tensor:
        return self._scores_R

    def _stack(self, scales: list[float], order: int) -> Tensor:
        return self._layout.sequence_mean(self._tokens._stack(scales, order).transpose(0, 1)).transpose(0, 1)

    def _own(self, scales_N: Tensor, order: int) -> Tensor:
        # Not by way of the tokens: those of a sequence share its scale, and one readout of its state serves them all.
        return self._sequences._own(scales_N, order)


@dataclass(frozen=True)
class UpdatePaths:
    """φ of one update of a batch at three grains.

    Attributes:
        tokens: every reference token.
        sequences: every sequence, as the readout made it.
        questions: every question.
    """

    tokens: RememberedPath
    sequences: SequencePath
    questions: UtilityPath


def update_paths(
    model: LoopedModel, h_RSD: Tensor, h_plus_RSD: Tensor, layout: Layout, dtype: torch.dtype, before: Reading
) -> UpdatePaths:
    """The paths from H to H⁺ with the readout in `dtype`; `before` is the reading of H."""
    sequences = sequence_path(model, h_RSD, h_plus_RSD, layout, dtype)
    tokens = RememberedPath(sequences.per_token(), before.log_p_N)
    mean = MeanPath(tokens, sequences, layout, before.scores_R)
    return UpdatePaths(tokens, sequences, joint_path(mean, layout))


def joint_path(sequences: UtilityPath, layout: Layout) -> UtilityPath:
    """φ of every question: the sequence's own for a reference solution, joint over options otherwise."""
    return option_path(sequences, layout.question_R, correct_rows(layout)) if layout.is_options else sequences


def sequence_path(
    model: LoopedModel, h_RSD: Tensor, h_plus_RSD: Tensor, layout: Layout, dtype: torch.dtype
) -> SequencePath:
    """φ of every sequence's mean log probability, its readout in `dtype`."""
    if model.head is None:
        return JoinedPath(
            [
                nonlinear_path_from_states(
                    lambda state, positions: model.readout(state, positions, dtype),
                    h_RSD[piece.rows],
                    h_plus_RSD[piece.rows],
                    layout.targets_N[piece.tokens],
                    local_positions(layout, piece),
                    examples=layout.sequence_N[piece.tokens] - piece.rows.start,
                    dtype=dtype,
                )
                for piece in pieces(model, layout)
            ]
        )
    row, place = layout.positions_N2.unbind(1)
    size = block_size(model.head)
    return affine_path_from_states(
        h_RSD[row, place],
        h_plus_RSD[row, place],
        model.head.weight_VD,
        model.head.bias_V,
        layout.targets_N,
        examples=layout.sequence_N,
        dtype=dtype,
        block_tokens=size.tokens,
        block_vocabulary=size.vocabulary,
    )


class BlockSize(NamedTuple):
    """How much an affine path works on at a time; None leaves it to the path."""

    tokens: int | None
    vocabulary: int | None


def block_size(head: AffineHead) -> BlockSize:
    """A core wants blocks that stay in its cache, which is the path's own choice; a GPU wants a few large ones."""
    if head.weight_VD.device.type == "cpu":
        return BlockSize(None, None)
    vocabulary = int(head.weight_VD.shape[0])
    return BlockSize(max(1, _GPU_BLOCK // vocabulary), vocabulary)
