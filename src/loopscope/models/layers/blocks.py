"""Blocks one after another, each of which also makes the normed input of the next.

A block adds two branches to the residual stream. The norm ahead of the next block's first branch belongs to the
next block, but is taken where the sum is made: one pass over the states instead of two.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from loopscope.models.base import LoopedModule, needs_elementary_operations, select
from loopscope.models.layers.attention import Queries, Surroundings, counted_surroundings, queries_at
from loopscope.models.layers.norms import RMSNorm, Stream, start_stream
from loopscope.models.layers.rope import Rotary


class Block(Protocol):
    """Attention and feed-forward on the residual stream."""

    @property
    def first_norm(self) -> RMSNorm | None:
        """The norm ahead of the attention, None where it reads the stream itself."""
        ...

    def __call__(
        self, stream: Stream, around: Surroundings, slot: int, next_norm: RMSNorm | None, queries: Queries | None
    ) -> Stream:
        """The stream after both branches; `normed` is `next_norm` of the state."""
        ...


def readout_surroundings(model: LoopedModule, state: Tensor, rotary: Rotary, dtype: torch.dtype | None) -> Surroundings:
    """What blocks of a readout see around them: it gets nothing but the state, so rows begin at position 0."""
    arithmetic = model.dtype if dtype is None else dtype
    return counted_surroundings(
        state.shape[1], model.device, rotary, arithmetic, plain=needs_elementary_operations(state)
    )


def read_blocks(
    state: Tensor,
    blocks: Iterable[nn.Module],
    around: Surroundings,
    slots: Iterable[int],
    last_norm: RMSNorm,
    positions_N2: Tensor | None,
) -> Tensor:
    """What the head reads: [N, D] at positions of (row, position), or [B, S, D] where None."""
    if positions_N2 is None:
        return run_blocks(state, blocks, around, slots, last_norm).normed
    if positions_N2.shape[0] == 0:
        return select(run_blocks(state, blocks, around, slots, last_norm).normed, positions_N2)
    queries = queries_at(positions_N2, around, state.shape[0], state.shape[1])
    hidden = run_blocks(state, blocks, around, slots, last_norm, queries).normed
    return hidden.reshape(hidden.shape[1:])


def run_blocks(
    state: Tensor,
    blocks: Iterable[nn.Module],
    around: Surroundings,
    slots: Iterable[int],
    last_norm: RMSNorm | None = None,
    queries: Queries | None = None,
) -> Stream:
    """The stream after all blocks, with `last_norm` of it; at the queries alone, [1, N, D], where there are any.

    Every block but the last still runs at all positions, because the last one's keys need them.
    """
    listed = [cast(Block, block) for block in blocks]
    if not listed:
        return start_stream(state if queries is None else queries.pick(state), last_norm, around.plain)
    stream = start_stream(state, listed[0].first_norm, around.plain)
    for index, (block, slot) in enumerate(zip(listed, slots, strict=True)):
        is_last = index == len(listed) - 1
        next_norm = last_norm if is_last else listed[index + 1].first_norm
        stream = block(stream, around, slot, next_norm, queries if is_last else None)
    return stream
