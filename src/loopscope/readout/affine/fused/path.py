"""The fused kernels as an affine path uses them: which paths they take, and tokens that they gave up.

The kernels report NaN for a token whose likeliest entries change places so violently along the path that FP32 weights
underflow (`merge`). With `check` such tokens are read out again without the kernels, which waits for the device;
without it they stay NaN, and the caller has to look.

Shapes: T tokens, t of them in a chunk, V vocabulary entries, D hidden width, K scales.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from loopscope.kernels.choice import takes_kernel
from loopscope.readout.affine.endpoint import EndpointDistributions
from loopscope.readout.affine.even import EvenScales, Survey
from loopscope.readout.affine.fused.growth import growth_of
from loopscope.readout.affine.fused.launches import DEFAULT, FusedHead, Tiles, Wanted, merged, swept
from loopscope.readout.affine.fused.logits import target_logits
from loopscope.readout.affine.fused.merge import Extra
from loopscope.readout.affine.fused.nodes import Nodes

MOST_SCALES = 33
"""A weight is at most half as many multiplications away from an exponential."""

CHUNK = 8192
"""Tokens whose sums exist at a time."""


@dataclass(frozen=True)
class TokenSurvey:
    """What the kernels found of every token, float64; NaN where the token is to be read another way (`merge`)."""

    gains_TK: Tensor
    derivatives: Tensor
    initial_T: Tensor
    distributions: EndpointDistributions
    spread_T: Tensor
    own_T: Tensor
    again_T: Tensor


def fused_survey(
    head: FusedHead,
    targets_T: Tensor,
    even: EvenScales,
    order: int,
    *,
    own_T: Tensor | None = None,
    ends: bool = True,
    extremes: bool = False,
    every_scale: bool = False,
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
        every_scale: whether to sum at every scale, even where φ at some of them follows from others (`nodes`).
        tiles: the shape of a program's work; None lets the shapes decide.
        splits: how many splits of the vocabulary; None lets the shapes decide.
    """
    tokens = head.h_TD.shape[0]
    nodes = Nodes.every(even, order) if every_scale or own_T is not None else Nodes.fewest(even, order)
    wanted = Wanted(nodes, even.count, own=own_T is not None, ends=ends, extremes=extremes)
    out = torch.empty(wanted.results.total, tokens, dtype=torch.float64, device=head.h_TD.device)
    for start in range(0, tokens, CHUNK):
        rows = slice(start, min(start + CHUNK, tokens))
        here = FusedHead(head.h_TD[rows], head.h_plus_TD[rows], head.weight_VD, head.bias_V)
        own_t = None if own_T is None else own_T[rows]
        found = _chunk(here, targets_T[rows], wanted, own_t, tiles or DEFAULT, splits)
        if tokens <= CHUNK:
            out = found
        else:
            out[:, rows] = found
    return told(out, even, order, wanted)


def _chunk(
    head: FusedHead, targets_T: Tensor, wanted: Wanted, own_T: Tensor | None, tiles: Tiles, splits: int | None
) -> Tensor:
    growth = growth_of(head.weight_VD)
    labels = target_logits(head.h_TD, head.h_plus_TD, head.weight_VD, head.bias_V, targets_T, growth)
    own = labels if own_T is None else own_T.to(torch.float32)
    sums = swept(head, targets_T, labels, growth, own, wanted, tiles, splits)
    return merged(sums, head, targets_T, labels, growth, own, wanted, tiles)


def told(out: Tensor, even: EvenScales, order: int, wanted: Wanted) -> TokenSurvey:
    """What `merge_kernel` wrote, by name."""
    known, results = wanted.nodes.reported(even), wanted.results
    gains_KT = out[: even.count]
    slopes = out[even.count : results.extra].reshape(len(known), results.order + 1, out.shape[1])[:, : order + 1]
    if even.places != known:
        by_place = gains_KT.unsqueeze(1) if order == 0 else slopes
        asked = [by_place[place if order == 0 else known.index(place)] for place in even.places]
        slopes = torch.stack(asked) if asked else slopes[:0]
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
        extra.again,
    )


ENDS = EvenScales(2, ())


@dataclass(frozen=True)
class FusedPath:
    """Two states under a head that the kernels take."""

    head: FusedHead
    targets_T: Tensor
    check: bool
    every_scale: bool

    @staticmethod
    def takes(even: EvenScales) -> bool:
        """Whether a grid is not too fine for repeated multiplication in FP32."""
        return even.count <= MOST_SCALES

    def survey(self, even: EvenScales, order: int, *, spread: bool = False) -> TokenSurvey:
        """Everything about every token but those that are given up."""
        return fused_survey(self.head, self.targets_T, even, order, extremes=spread, every_scale=self.every_scale)

    def completed(self, found: TokenSurvey, again: Callable[[Tensor], Survey]) -> TokenSurvey:
        """The same with those; `again` surveys some tokens another way."""
        lost = self._lost(found.initial_T + found.gains_TK[:, 0])
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
            found.again_T,
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
    every_scale: bool = False,
) -> FusedPath | None:
    """The kernels for these states and this head, or None where they cannot be had."""
    h_TD, h_plus_TD = h_TD.detach(), h_plus_TD.detach()
    with torch.no_grad():
        if not takes_kernel(h_TD) or not FusedHead.fits(h_TD, h_plus_TD, weight_VD):
            return None
    head = FusedHead(h_TD.contiguous(), h_plus_TD.contiguous(), weight_VD, bias_V)
    return FusedPath(head, targets_T, check, every_scale)
