"""Reference tokens through an affine head: only the states at their prediction positions matter, [N, D].

Nothing here waits for the device, unless `careful`: then tokens that the kernels give up are read another way, which is
only known when they have run. Otherwise such a token is NaN, and the batch is measured again, carefully.

Shapes: N reference tokens, R sequences, S positions, D hidden width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.measure.layout import Layout
from loopscope.models.protocol import AffineHead
from loopscope.readout.affine.make import affine_path_from_states
from loopscope.readout.affine.path import AffinePath

_GPU_BLOCK = 1 << 24
"""Logits of a block on a GPU: 128 MiB in float64."""


def predicting(state_RSD: Tensor, layout: Layout) -> Tensor:
    """The states whose logits predict the reference tokens, [N, D]."""
    row, place = layout.positions_N2.unbind(1)
    return state_RSD[row, place]


class Reader(NamedTuple):
    """How an affine head is read.

    Attributes:
        head: the head.
        layout: whose reference tokens.
        dtype: arithmetic of the readout.
        careful: whether to wait for the device and read again what its kernels give up.
    """

    head: AffineHead
    layout: Layout
    dtype: torch.dtype
    careful: bool = False


def token_path(reader: Reader, h_ND: Tensor, h_plus_ND: Tensor) -> AffinePath:
    """φ of every reference token by itself."""
    head = reader.head
    size = block_size(head)
    path = affine_path_from_states(
        h_ND,
        h_plus_ND,
        head.weight_VD,
        head.bias_V,
        reader.layout.targets_N,
        dtype=reader.dtype,
        block_tokens=size.tokens,
        block_vocabulary=size.vocabulary,
        check=reader.careful,
    )
    return path.per_token()


class LogProbabilities(NamedTuple):
    """Log p of every reference token at two states, float64 [N] each."""

    first: Tensor
    second: Tensor


def read_two(reader: Reader, first_ND: Tensor, second_ND: Tensor) -> LogProbabilities:
    """Two states read at once: the head passes by once for both."""
    found = token_path(reader, first_ND, second_ND).survey(2, [], 0)
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
