"""The fused kernels as an affine path uses them: which paths they take, launches, and tokens that they gave up.

The kernels report NaN for a token whose likeliest entries change places so violently along the path that FP32 weights
underflow (`merge`). With `check` such tokens are read out again without the kernels, which waits for the device;
without it they stay NaN, and the caller has to look.

Shapes: T tokens, t of them in a chunk, V vocabulary entries, D hidden width, K scales.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from loopscope.kernels.choice import takes_kernel
from loopscope.kernels.language import descriptor, launch, power_of_two
from loopscope.readout.affine.endpoint import EndpointDistributions
from loopscope.readout.affine.even import EvenScales, Survey
from loopscope.readout.affine.fused.growth import growth_of
from loopscope.readout.affine.fused.logits import target_logits
from loopscope.readout.affine.fused.merge import Extra, Results, merge_kernel
from loopscope.readout.affine.fused.sums import slots
from loopscope.readout.affine.fused.sweep import sweep_kernel

MOST_SCALES = 33
"""A weight is at most half as many multiplications away from an exponential."""

CHUNK = 8192
"""Tokens whose sums exist at a time."""

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


@dataclass(frozen=True)
class TokenSurvey:
    """What the kernels found of every token, float64; NaN where the token is to be read another way (`merge`)."""

    gains_TK: Tensor
    derivatives: Tensor
    initial_T: Tensor
    distributions: EndpointDistributions
    spread_T: Tensor
    own_T: Tensor


def fused_survey(
    head: FusedHead,
    targets_T: Tensor,
    even: EvenScales,
    order: int,
    *,
    own_T: Tensor | None = None,
    ends: bool = True,
    extremes: bool = False,
    tiles: Tiles | None = None,
    splits: int | None = None,
) -> TokenSurvey:
    """φ at even scales, its derivatives at some of them, endpoint distributions: two products a token and one sweep.

    Args:
        head: states and head.
        targets_T: reference label of each token.
        even: the scales.
        order: highest derivative.
        own_T: a further scale for each token.
        ends: whether the endpoint distributions are wanted.
        extremes: whether the spread is wanted.
        tiles: the shape of a program's work; None lets the shapes decide.
        splits: how many splits of the vocabulary; None lets the shapes decide.
    """
    tokens = head.h_TD.shape[0]
    in_order = sorted(set(even.places)) if order else []
    results = Results(even.count, len(in_order), order)
    out = torch.empty(results.total, tokens, dtype=torch.float64, device=head.h_TD.device)
    for start in range(0, tokens, CHUNK):
        rows = slice(start, min(start + CHUNK, tokens))
        here = FusedHead(head.h_TD[rows], head.h_plus_TD[rows], head.weight_VD, head.bias_V)
        own_t = None if own_T is None else own_T[rows]
        found = _chunk(here, targets_T[rows], even, order, own_t, ends, extremes, tiles or DEFAULT, splits)
        if tokens <= CHUNK:
            out = found
        else:
            out[:, rows] = found
    return told(out, even, order)


def told(out: Tensor, even: EvenScales, order: int) -> TokenSurvey:
    """What `merge_kernel` wrote, by name."""
    in_order = sorted(set(even.places)) if order else []
    results, tokens = Results(even.count, len(in_order), order), out.shape[1]
    gains_KT = out[: even.count]
    slopes = out[even.count : results.extra].reshape(len(in_order), order + 1, tokens)
    if list(even.places) != in_order:
        known = gains_KT.unsqueeze(1) if order == 0 else slopes
        slopes = torch.stack([known[place if order == 0 else in_order.index(place)] for place in even.places])
    extra = Extra(*out[results.extra :])
    return TokenSurvey(
        gains_KT.T,
        slopes.permute(1, 2, 0),
        extra.initial,
        EndpointDistributions(
            extra.divergence,
            extra.reverse_divergence,
            extra.initial_entropy,
            extra.final_entropy,
            extra.entropy_change,
        ),
        extra.spread,
        extra.own,
    )


def _chunk(
    head: FusedHead,
    targets_T: Tensor,
    even: EvenScales,
    order: int,
    own_T: Tensor | None,
    ends: bool,
    extremes: bool,
    tiles: Tiles,
    splits: int | None,
) -> Tensor:
    (tokens, width), vocabulary = head.h_TD.shape, head.weight_VD.shape[0]
    device = head.h_TD.device
    growth = growth_of(head.weight_VD)
    labels = target_logits(head.h_TD, head.h_plus_TD, head.weight_VD, head.bias_V, targets_T, growth)
    cut = Cut.of(tokens, vocabulary, width, tiles, splits, device)
    constants = asked(even, order, own=own_T is not None, ends=ends, extremes=extremes)
    sums = torch.empty(cut.splits, constants["SLOTS"], tokens, dtype=torch.float32, device=device)
    own = labels if own_T is None else own_T.to(torch.float32)
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
        sums,
        tokens,
        vocabulary,
        width,
        growth.halfway,
        cut.per_split,
        _ROUNDS,
        warps=tiles.warps,
        fusion=True,
        num_stages=tiles.stages,
        FIRST_PLACE=min(even.places, default=0),
        LAST_PLACE=max(even.places, default=0),
        HAS_BIAS=head.bias_V is not None,
        RAGGED=vocabulary % tiles.vocabulary != 0,
        BLOCK_T=tiles.tokens,
        BLOCK_V=tiles.vocabulary,
        BLOCK_D=cut.width,
        GROUP=tiles.group,
        **constants,
    )
    return merged(sums, labels, growth.logits, own, constants)


def asked(even: EvenScales, order: int, *, own: bool, ends: bool, extremes: bool) -> dict[str, Any]:
    """What is wanted of every token, as the kernels are told."""
    places = sum(1 << place for place in set(even.places)) if order else 0
    return {
        "COUNT": even.count,
        "PLACES": places,
        "SLOTS": slots(even.count, places.bit_count(), order),
        "ORDER": order,
        "HAS_OWN": own,
        "ENDS": ends,
        "EXTREMES": extremes,
    }


def merged(sums: Tensor, labels: Tensor, grow: Tensor, own: Tensor, constants: dict[str, Any]) -> Tensor:
    """Results [results, T] from the sums of every split, [splits, slots, T]."""
    splits, _, tokens = sums.shape
    results = Results(constants["COUNT"], constants["PLACES"].bit_count(), constants["ORDER"])
    out = torch.empty(results.total, tokens, dtype=torch.float64, device=sums.device)
    block = 16
    launch(
        merge_kernel,
        (-(-tokens // block),),
        sums,
        sums,
        labels,
        grow,
        own,
        out,
        tokens,
        splits,
        EXTRA=results.extra,
        BLOCK_T=block,
        BLOCK_K=power_of_two(results.scales),
        **constants,
    )
    return out


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


ENDS = EvenScales(2, ())


@dataclass(frozen=True)
class FusedPath:
    """Two states under a head that the kernels take."""

    head: FusedHead
    targets_T: Tensor
    check: bool

    @staticmethod
    def takes(even: EvenScales) -> bool:
        """Whether a grid is not too fine for repeated multiplication in FP32."""
        return even.count <= MOST_SCALES

    def survey(self, even: EvenScales, order: int, *, spread: bool = False) -> TokenSurvey:
        """Everything about every token but those that are given up."""
        return fused_survey(self.head, self.targets_T, even, order, extremes=spread)

    def completed(self, found: TokenSurvey, again: Callable[[Tensor], Survey]) -> TokenSurvey:
        """The same with those; `again` surveys some tokens another way."""
        lost = self._lost(found.initial_T)
        if lost is None:
            return found
        other = again(lost)
        return TokenSurvey(
            found.gains_TK.index_copy(0, lost, other.gains),
            found.derivatives.index_copy(1, lost, other.derivatives),
            found.initial_T.index_copy(0, lost, other.initial),
            EndpointDistributions(*found.distributions.stacked().index_copy(1, lost, other.distributions.stacked())),
            found.spread_T if other.spread is None else found.spread_T.index_copy(0, lost, other.spread),
            found.own_T,
        )

    def own(self, scales_T: Tensor, again: Callable[[Tensor], Tensor]) -> Tensor:
        """φ of every token at a scale of its own, [T]."""
        found_T = fused_survey(self.head, self.targets_T, ENDS, 0, own_T=scales_T, ends=False).own_T
        lost = self._lost(found_T)
        return found_T if lost is None else found_T.index_copy(0, lost, again(lost))

    def _lost(self, values_T: Tensor) -> Tensor | None:
        if not self.check:
            return None
        lost = torch.nonzero(~values_T.isfinite())[:, 0]
        return lost if lost.numel() else None


def fused_path(
    h_TD: Tensor,
    h_plus_TD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_T: Tensor,
    *,
    check: bool,
) -> FusedPath | None:
    """The kernels for these states and this head, or None where they cannot be had."""
    h_TD, h_plus_TD = h_TD.detach(), h_plus_TD.detach()
    with torch.no_grad():
        if not takes_kernel(h_TD) or not FusedHead.fits(h_TD, h_plus_TD, weight_VD):
            return None
    return FusedPath(FusedHead(h_TD.contiguous(), h_plus_TD.contiguous(), weight_VD, bias_V), targets_T, check)
