"""Launches of the fused kernels: what they are asked, how work is cut into programs, tokens that are swept again.

Shapes: T tokens, V vocabulary entries, D hidden width, K scales.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from loopscope.kernels.language import descriptor, launch, power_of_two
from loopscope.readout.affine.even import EvenScales, scales_on
from loopscope.readout.affine.fused.again import Listed, gathered, put_back
from loopscope.readout.affine.fused.growth import Growth
from loopscope.readout.affine.fused.merge import Results, merge_kernel
from loopscope.readout.affine.fused.nodes import Nodes, weights_on
from loopscope.readout.affine.fused.sweep import sweep_kernel

_ROUNDS = 2
"""Of the sweep's loop over a tile's columns; as an argument, because a length that is known would be unrolled."""


class Tiles(NamedTuple):
    """The shape of a program's work."""

    tokens: int = 64
    vocabulary: int = 128
    width: int = 64
    warps: int = 4
    stages: int = 3
    programs: int = 2  # that a multiprocessor holds at a time
    group: int = 16  # blocks of tokens that are swept together
    entries: int = 3072  # of a split, at most: sums in FP32 stay short, and their rounding below that of the products


DEFAULT = Tiles()
_MERGED = 8, 1
"""Tokens and warps of a program that merges."""

_AGAIN = 768
"""Entries of a split where few tokens are swept again: many splits of them fill the device, too."""


@dataclass(frozen=True)
class FusedHead:
    """Two states and a head that the kernels can take; BF16 or FP16, one dtype, rows contiguous."""

    h_TD: Tensor
    h_plus_TD: Tensor
    weight_VD: Tensor
    bias_V: Tensor | None

    @staticmethod
    def fits(h_TD: Tensor, h_plus_TD: Tensor, weight_VD: Tensor) -> bool:
        """Whether the products are exact in FP32 and the shapes suit the tensor cores."""
        kinds = {h_TD.dtype, h_plus_TD.dtype, weight_VD.dtype}
        exact = len(kinds) == 1 and kinds <= {torch.bfloat16, torch.float16}
        # The copy engine reads rows that follow one another and begin on 16 bytes.
        in_rows = weight_VD.stride(1) == 1 and weight_VD.stride(0) % 8 == 0 and weight_VD.data_ptr() % 16 == 0
        return exact and in_rows and h_TD.shape[1] % 16 == 0


class Wanted(NamedTuple):
    """What is wanted of every token: gains at so many even scales, and more."""

    nodes: Nodes
    scales: int
    own: bool = False
    ends: bool = True
    extremes: bool = False

    @property
    def results(self) -> Results:
        """Where it is written."""
        return Results(self.scales, len(self.nodes.places), self.nodes.order)

    def constants(self) -> dict[str, Any]:
        """As the kernels are told."""
        return self.nodes.constants() | {"HAS_OWN": self.own, "ENDS": self.ends, "EXTREMES": self.extremes}


class Cut(NamedTuple):
    """How tokens and vocabulary are cut into programs."""

    token_blocks: int
    splits: int
    per_split: int  # tiles
    width: int  # of a block of the hidden width

    @staticmethod
    def of(tokens: int, vocabulary: int, width: int, tiles: Tiles, splits: int | None, device: torch.device) -> Cut:
        """As `tiles` says; `splits` None lets the shapes decide."""
        token_blocks, tile_count = -(-tokens // tiles.tokens), -(-vocabulary // tiles.vocabulary)
        fewest = -(-vocabulary // tiles.entries)
        wanted = splits or _splits(token_blocks, tile_count, fewest, tiles.programs, device)
        per_split = -(-tile_count // min(wanted, tile_count))
        block_width = next(size for size in (tiles.width, 64, 32, 16) if width % size == 0)
        return Cut(token_blocks, -(-tile_count // per_split), per_split, block_width)


def processors(device: torch.device) -> int:
    """How many multiprocessors there are; a few where kernels are interpreted."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 3


@functools.lru_cache(maxsize=1024)
def _splits(token_blocks: int, tile_count: int, fewest: int, resident: int, device: torch.device) -> int:
    """As many splits as let the programs fill the device's multiprocessors a whole number of times, or nearly."""
    if device.type != "cuda":
        return min(2, tile_count)
    at_once = resident * processors(device)
    best, chosen = 0.0, fewest
    for splits in range(fewest, max(fewest, min(tile_count, 64)) + 1):
        per_split = -(-tile_count // splits)
        programs = token_blocks * -(-tile_count // per_split)
        waves = -(-programs // at_once)
        # Work over what the waves could have done; more than four waves gain little, and each split costs a merge.
        use = token_blocks * tile_count / (waves * at_once * per_split) - 0.001 * splits
        if use > best:
            best, chosen = use, splits
    return chosen


def swept(
    head: FusedHead,
    targets_T: Tensor,
    labels: Tensor,
    growth: Growth,
    own: Tensor,
    wanted: Wanted,
    tiles: Tiles,
    splits: int | None,
    listed: Listed | None = None,
    first: int = 0,
) -> Tensor:
    """The sums of every split, [splits, slots, T]; of tokens of a list from its place `first` on."""
    (tokens, width), vocabulary = head.h_TD.shape, head.weight_VD.shape[0]
    cut = Cut.of(tokens, vocabulary, width, tiles, splits, labels.device)
    constants = wanted.constants()
    sums = torch.empty(cut.splits, constants["SLOTS"], tokens, dtype=torch.float32, device=labels.device)
    launch(
        sweep_kernel,
        (cut.token_blocks, cut.splits),
        sums,
        descriptor(head.h_TD, [tiles.tokens, cut.width]),
        descriptor(head.h_plus_TD, [tiles.tokens, cut.width]),
        descriptor(head.weight_VD, [tiles.vocabulary, cut.width]),
        labels if head.bias_V is None else head.bias_V,
        targets_T,
        labels,
        growth.logits,
        own,
        targets_T if listed is None else listed.many,
        sums,
        tokens,
        first,
        vocabulary,
        width,
        growth.halfway,
        cut.per_split,
        _ROUNDS,
        warps=tiles.warps,
        fusion=True,
        num_stages=tiles.stages,
        HAS_BIAS=head.bias_V is not None,
        RAGGED=vocabulary % tiles.vocabulary != 0,
        LIMITED=listed is not None,
        BLOCK_T=tiles.tokens,
        BLOCK_V=tiles.vocabulary,
        BLOCK_D=cut.width,
        GROUP=tiles.group,
        **constants,
    )
    return sums


def merged(
    sums: Tensor,
    head: FusedHead,
    targets_T: Tensor,
    labels: Tensor,
    growth: Growth,
    own: Tensor,
    wanted: Wanted,
    tiles: Tiles,
) -> Tensor:
    """Results [results, T] from the sums of every split, [splits, slots, T]; after few scales some are swept again."""
    if not wanted.nodes.are_few:
        return _merged(sums, labels, growth, own, wanted)
    listed = Listed.of(sums.shape[2], sums.device)
    out = _merged(sums, labels, growth, own, wanted, listed)
    every = Wanted(Nodes.every(EvenScales(wanted.scales, ()), 0), wanted.scales, ends=False)
    splits = -(-head.weight_VD.shape[0] // _AGAIN)  # whatever a round's tokens are
    for places in listed.rounds:
        found = gathered(listed, places, head.h_TD, head.h_plus_TD, targets_T, labels)
        some = FusedHead(found.h_RD, found.h_plus_RD, head.weight_VD, head.bias_V)
        sums = swept(some, found.targets_R, found.labels, growth, own, every, tiles, splits, listed, places.start)
        gains = _merged(sums, found.labels, growth, own, every, listed, places.start)[: wanted.scales]
        put_back(listed, places, gains, out[: wanted.scales])
    return out


def _merged(
    sums: Tensor,
    labels: Tensor,
    growth: Growth,
    own: Tensor,
    wanted: Wanted,
    listed: Listed | None = None,
    first: int = 0,
) -> Tensor:
    """The same of one sweep; with few scales it writes the list, otherwise its tokens are those of the list."""
    (splits, _, tokens), nodes, results = sums.shape, wanted.nodes, wanted.results
    out = torch.empty(results.total, tokens, dtype=torch.float64, device=sums.device)
    constants = wanted.constants()
    del constants["STRIDE"], constants["FIRST_MASS"], constants["LAST_MASS"]
    block, warps = _MERGED
    launch(
        merge_kernel,
        (-(-tokens // block),),
        sums,
        sums,
        labels,
        growth.logits,
        own,
        scales_on(tuple(k / nodes.cells for k in nodes.masses), sums.device),
        weights_on(wanted.scales, sums.device) if nodes.are_few else out,
        out if listed is None else listed.many,
        out if listed is None else listed.which_T,
        out,
        tokens,
        splits,
        first,
        warps=warps,
        GRID=wanted.scales,
        EXTRA=results.extra,
        FEW=nodes.are_few,
        LIMITED=listed is not None and not nodes.are_few,
        BLOCK_T=block,
        BLOCK_K=power_of_two(constants["MASS"]),
        BLOCK_G=power_of_two(wanted.scales),
        **constants,
    )
    return out
