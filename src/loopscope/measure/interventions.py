"""Interventions on rounded states (Appendix "Immediate Quadratic Scale Selection").

H + αD is interpolated in FP32 over all valid positions, padding keeps the proposed state, the result is rounded to
BF16 and read out in FP32. The gain is measured against the same H, so it is the gain of a state that the model's own
arithmetic can hold, not of the ideal interpolant.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loopscope.measure.layout import Layout
from loopscope.measure.utility import Reading, read
from loopscope.models.protocol import LoopedModel


def rounded_state(h_RSD: Tensor, h_plus_RSD: Tensor, scale_B: Tensor, layout: Layout) -> Tensor:
    """H + αD in FP32, one α a question, rounded to BF16 and handed on in the states' dtype."""
    scale_R11 = scale_B.float()[layout.question_R, None, None]
    h, h_plus = h_RSD.float(), h_plus_RSD.float()
    mixed = torch.where(layout.batch.attention_mask.unsqueeze(-1), h + scale_R11 * (h_plus - h), h_plus)
    return mixed.to(torch.bfloat16).to(h_RSD.dtype)


def rounded_gain(
    model: LoopedModel,
    h_RSD: Tensor,
    h_plus_RSD: Tensor,
    scale_B: Tensor,
    layout: Layout,
    dtype: torch.dtype,
    before: Reading,
) -> Tensor:
    """U of the rounded intervention minus U(H), float64 [B]."""
    return read(model, rounded_state(h_RSD, h_plus_RSD, scale_B, layout), layout, dtype).utility_B - before.utility_B
