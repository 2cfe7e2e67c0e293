"""Interventions on rounded states (Appendix "Immediate Quadratic Scale Selection").

H + αD is interpolated in FP32 over all valid positions, padding keeps the proposed state, the result is rounded to
BF16 and read out in FP32. The gain is measured against the same H, so it is the gain of a state that the model's own
arithmetic can hold, not of the ideal interpolant. An affine head reads the prediction positions alone, so only those
are interpolated for it.

Shapes: N reference tokens, R sequences, B questions, S positions, D hidden width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loopscope.measure.affine import Reader, predicting, read_two
from loopscope.measure.layout import Layout
from loopscope.measure.utility import Reading, read
from loopscope.models.protocol import LoopedModel


def interpolated(h: Tensor, h_plus: Tensor, scale: Tensor) -> Tensor:
    """H + αD in FP32, rounded to BF16 and handed on in the states' dtype; `scale` broadcasts against the states."""
    start = h.float()
    mixed = start + scale.float() * (h_plus.float() - start)
    return mixed.to(torch.bfloat16).to(h.dtype)


def rounded_state(h_RSD: Tensor, h_plus_RSD: Tensor, scale_B: Tensor, layout: Layout) -> Tensor:
    """The intervention at every position, one α a question."""
    mixed = interpolated(h_RSD, h_plus_RSD, scale_B[layout.question_R, None, None])
    kept = h_plus_RSD.to(torch.bfloat16).to(h_RSD.dtype)
    return torch.where(layout.batch.attention_mask.unsqueeze(-1), mixed, kept)


def rounded_gains(
    model: LoopedModel,
    h_RSD: Tensor,
    h_plus_RSD: Tensor,
    scales_B: tuple[Tensor, Tensor],
    layout: Layout,
    dtype: torch.dtype,
    before: Reading,
    reader: Reader | None,
) -> tuple[Tensor, Tensor]:
    """U of the rounded interventions at two scales a question, each minus U(H), float64 [B]; `reader` if affine."""
    if reader is not None:
        one, other = _affine(reader, h_RSD, h_plus_RSD, scales_B)
    else:
        one, other = (
            read(model, rounded_state(h_RSD, h_plus_RSD, scale_B, layout), layout, dtype) for scale_B in scales_B
        )
    return one.utility_B - before.utility_B, other.utility_B - before.utility_B


def _affine(
    reader: Reader, h_RSD: Tensor, h_plus_RSD: Tensor, scales_B: tuple[Tensor, Tensor]
) -> tuple[Reading, Reading]:
    layout = reader.layout
    h_ND, h_plus_ND = predicting(h_RSD, layout), predicting(h_plus_RSD, layout)
    question_N = layout.question_R[layout.sequence_N]
    one, other = (interpolated(h_ND, h_plus_ND, scale_B[question_N, None]) for scale_B in scales_B)
    log_p = read_two(reader, one, other)
    return Reading.of(log_p.first, layout), Reading.of(log_p.second, layout)
