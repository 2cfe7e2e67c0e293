"""Reference tokens through an affine head: only the states at their prediction positions matter, [N, D].

Nothing here waits for the device; whether the states are finite is looked at when the batch is through.

Shapes: N reference tokens, R sequences, S positions, D hidden width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.measure.layout import Layout
from loopscope.models.protocol import AffineHead
from loopscope.readout.affine import AffinePath, affine_path_from_states

_GPU_BLOCK = 1 << 24
"""Logits of a block on a GPU: 128 MiB in float64."""


def predicting(state_RSD: Tensor, layout: Layout) -> Tensor:
    """The states whose logits predict the reference tokens, [N, D]."""
    row, place = layout.positions_N2.unbind(1)
    return state_RSD[row, place]


def token_path(head: AffineHead, h_ND: Tensor, h_plus_ND: Tensor, layout: Layout, dtype: torch.dtype) -> AffinePath:
    """φ of every reference token by itself, the head read in `dtype`."""
    size = block_size(head)
    path = affine_path_from_states(
        h_ND,
        h_plus_ND,
        head.weight_VD,
        head.bias_V,
        layout.targets_N,
        dtype=dtype,
        block_tokens=size.tokens,
        block_vocabulary=size.vocabulary,
        check=False,
    )
    return path.per_token()


class LogProbabilities(NamedTuple):
    """Log p of every reference token at two states, float64 [N] each."""

    first: Tensor
    second: Tensor


def read_two(
    head: AffineHead, first_ND: Tensor, second_ND: Tensor, layout: Layout, dtype: torch.dtype
) -> LogProbabilities:
    """Two states read at once: the head passes by once for both."""
    found = token_path(head, first_ND, second_ND, layout, dtype).survey(2, [], 0)
    return LogProbabilities(found.initial, found.initial + found.gains[:, -1])


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
