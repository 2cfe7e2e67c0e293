"""The fused kernels as an affine path uses them: where they can be had, and what to do with tokens they gave up.

The kernels report NaN for a token whose likeliest entries change places so violently along the path that FP32 weights
underflow (`merge`). With `check` such tokens are read out again without the kernels, which waits for the device;
without it they stay NaN, and the caller has to look.

Shapes: T tokens, V vocabulary entries, D hidden width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from loopscope.readout.endpoint import EndpointDistributions
from loopscope.readout.fused.survey import MOST_SCALES, FusedHead, TokenSurvey, fused_survey
from loopscope.readout.survey import EvenScales, Survey
from loopscope.triton_kernels.choice import takes_kernel

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

    def survey(self, even: EvenScales, order: int, again: Callable[[Tensor], Survey], *, spread: bool) -> TokenSurvey:
        """Everything about every token; `again` surveys some of them another way."""
        found = fused_survey(self.head, self.targets_T, even, order, extremes=spread)
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
