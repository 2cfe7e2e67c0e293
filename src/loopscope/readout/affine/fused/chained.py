"""Surveys of updates that follow one another: one sweep over a chain of states (`chain`).

Shapes: S states, T tokens, t of them in a chunk, V vocabulary entries, D hidden width, K scales.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from loopscope.kernels.language import descriptor, launch
from loopscope.readout.affine.even import EvenScales
from loopscope.readout.affine.fused.chain import Scratch, chain_kernel, parts_of
from loopscope.readout.affine.fused.growth import growth_of
from loopscope.readout.affine.fused.launches import DEFAULT, Cut, FusedHead, Tiles, Wanted, merged, processors
from loopscope.readout.affine.fused.logits import target_logits
from loopscope.readout.affine.fused.nodes import Nodes
from loopscope.readout.affine.fused.path import TokenSurvey, told

LEAST_STATES = 4
"""Of a chain; one update by itself is faster in `sweep`, and two are about as fast there."""
CHUNK = 4096
"""Tokens whose states are side by side at a time, and whose sums exist."""
WIDE = Tiles(tokens=128, vocabulary=256, width=64, warps=8, stages=3, programs=1, entries=3072)


def fused_surveys(
    states: Sequence[Tensor],
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_T: Tensor,
    even: EvenScales,
    order: int,
    *,
    every_scale: bool = False,
    tiles: Tiles = WIDE,
    splits: int | None = None,
) -> list[TokenSurvey]:
    """`fused_survey` of every update between neighbours of `states` [T, D], all of the same tokens."""
    wanted = Wanted(Nodes.every(even, order) if every_scale else Nodes.fewest(even, order), even.count)
    chunks = []
    for start in range(0, targets_T.shape[0], CHUNK):
        states_StD = torch.stack([state_TD[start : start + CHUNK] for state_TD in states])
        targets_t = targets_T[start : start + CHUNK]
        chunks.append(_chunk(states_StD, weight_VD, bias_V, targets_t, wanted, tiles, splits))
    found = chunks[0] if len(chunks) == 1 else torch.cat(chunks, 2)
    return [told(out, even, order, wanted) for out in found.unbind(1)]


def _chunk(
    states_StD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_t: Tensor,
    wanted: Wanted,
    tiles: Tiles,
    splits: int | None,
) -> Tensor:
    """Results [results, updates, t]."""
    (length, tokens, width), vocabulary, device = states_StD.shape, weight_VD.shape[0], weight_VD.device
    growth, updates = growth_of(weight_VD), length - 1
    head = FusedHead(states_StD[:-1].flatten(0, 1), states_StD[1:].flatten(0, 1), weight_VD, bias_V)
    repeated = targets_t.repeat(updates)
    labels = target_logits(head.h_TD, head.h_plus_TD, weight_VD, bias_V, repeated, growth)
    constants = wanted.nodes.constants()
    cut = Cut.of(tokens, vocabulary, width, tiles, splits, device)
    scratch = Scratch.of(tiles.tokens, tiles.vocabulary, constants["SLOTS"])
    programs = min(cut.token_blocks * cut.splits, tiles.programs * processors(device))
    logits = torch.empty(programs * scratch.logits, dtype=torch.float32, device=device)
    kept = torch.empty(programs * updates * scratch.sums, dtype=torch.float32, device=device)
    sums = torch.empty(cut.splits, constants["SLOTS"], updates * tokens, dtype=torch.float32, device=device)
    launch(
        chain_kernel,
        (programs,),
        sums,
        descriptor(states_StD.flatten(0, 1), [tiles.tokens, cut.width]),
        descriptor(weight_VD, [tiles.vocabulary, cut.width]),
        labels if bias_V is None else bias_V,
        targets_t,
        labels,
        growth.logits,
        logits,
        kept,
        sums,
        tokens,
        vocabulary,
        width,
        growth.halfway,
        cut.splits,
        cut.per_split,
        length,
        parts_of(tiles.vocabulary),
        warps=tiles.warps,
        fusion=True,
        num_stages=tiles.stages,
        HAS_BIAS=bias_V is not None,
        RAGGED=vocabulary % tiles.vocabulary != 0,
        KEPT_LOGITS=scratch.logits,
        KEPT_SUMS=scratch.sums,
        BLOCK_T=tiles.tokens,
        BLOCK_V=tiles.vocabulary,
        BLOCK_D=cut.width,
        **constants,
    )
    return merged(sums, head, repeated, labels, growth, labels, wanted, DEFAULT).reshape(-1, updates, tokens)
