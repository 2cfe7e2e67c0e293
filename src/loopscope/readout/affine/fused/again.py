"""Tokens for which few scales are not enough (`nodes`) are swept again, at every scale of the grid.

How many there are is known on the device alone. Their states are copied side by side, then swept and merged by programs
that end at once where there is no such token, and their gains are put in the place of the others. The host waits for
nothing. A token's result does not depend on which others are beside it.

Shapes: T tokens, R those of a round, D hidden width, K scales.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.kernels.language import Value, constexpr, jit, launch, power_of_two, tl
from loopscope.readout.affine.sources import blocks

ROOM = 4096
"""The most tokens that are swept again at a time."""


class Listed(NamedTuple):
    """Which tokens are swept again: how many, [1], and their numbers, [T]."""

    many: Tensor
    which_T: Tensor

    @staticmethod
    def of(tokens: int, device: torch.device) -> Listed:
        """None yet."""
        many = torch.zeros(1, dtype=torch.int32, device=device)
        return Listed(many, torch.empty(tokens, dtype=torch.int32, device=device))

    @property
    def rounds(self) -> list[slice]:
        """Places of the list, `ROOM` at a time."""
        return list(blocks(self.which_T.shape[0], ROOM))


class Gathered(NamedTuple):
    """Side by side, what belongs to the tokens of a list."""

    h_RD: Tensor
    h_plus_RD: Tensor
    targets_R: Tensor
    labels: Tensor  # [3, R]


def gathered(
    listed: Listed, places: slice, h_TD: Tensor, h_plus_TD: Tensor, targets_T: Tensor, labels: Tensor
) -> Gathered:
    """The states, labels and reference logits of the tokens at some places of a list."""
    room, width = places.stop - places.start, h_TD.shape[1]
    found = Gathered(
        h_TD.new_empty(room, width), h_TD.new_empty(room, width), targets_T.new_empty(room), labels.new_empty(3, room)
    )
    launch(
        _gather,
        (room,),
        h_TD,
        *listed,
        h_TD,
        h_plus_TD,
        targets_T,
        labels,
        *found,
        labels.shape[1],
        places.start,
        room,
        width,
        BLOCK=min(2048, power_of_two(width)),
    )
    return found


def put_back(listed: Listed, places: slice, gains_KR: Tensor, gains_KT: Tensor) -> None:
    """Gains of the tokens at some places of a list, instead of those that are there."""
    count, room = gains_KR.shape
    launch(
        _put_back,
        (room,),
        gains_KT,
        *listed,
        gains_KR,
        gains_KT,
        gains_KT.shape[1],
        places.start,
        room,
        COUNT=count,
        BLOCK=power_of_two(count),
    )


@jit
def _gather(
    many: Value,
    which: Value,
    h: Value,
    h_plus: Value,
    targets: Value,
    labels: Value,
    out_h: Value,
    out_h_plus: Value,
    out_targets: Value,
    out_labels: Value,
    tokens: Value,
    first: Value,
    rows: Value,
    width: Value,
    BLOCK: constexpr,
) -> None:
    to = tl.program_id(0).to(tl.int64)
    count = tl.load(many)
    # Programs of the sweep take tokens together: those beside the last ones have some state, too.
    if first + to >= (count + 127) // 128 * 128:
        return
    token = tl.load(which + first + to, mask=first + to < count, other=0).to(tl.int64)
    tl.store(out_targets + to, tl.load(targets + token))
    for row in tl.static_range(3):
        tl.store(out_labels + row * rows + to, tl.load(labels + row * tokens + token))
    for start in range(0, width, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < width
        tl.store(out_h + to * width + columns, tl.load(h + token * width + columns, mask=inside), mask=inside)
        moved = tl.load(h_plus + token * width + columns, mask=inside)
        tl.store(out_h_plus + to * width + columns, moved, mask=inside)


@jit
def _put_back(
    many: Value,
    which: Value,
    gains: Value,
    out: Value,
    tokens: Value,
    first: Value,
    rows: Value,
    COUNT: constexpr,
    BLOCK: constexpr,
) -> None:
    at = tl.program_id(0).to(tl.int64)
    if first + at >= tl.load(many):
        return
    token = tl.load(which + first + at).to(tl.int64)
    scale = tl.arange(0, BLOCK)
    found = tl.load(gains + scale * rows + at, mask=scale < COUNT)
    tl.store(out + scale.to(tl.int64) * tokens + token, found, mask=scale < COUNT)
