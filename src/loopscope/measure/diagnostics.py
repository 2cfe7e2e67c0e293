"""State diagnostics of an update over all valid positions (Appendix "State and Output Diagnostics").

Norms are Frobenius norms; the states of all options of a question are concatenated.

    ‖D‖,   ‖D‖ / (‖H‖ + 1e-12),   1 − ⟨H, H⁺⟩ / (‖H‖ ‖H⁺‖)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.measure.layout import Layout


class StateChange(NamedTuple):
    """One number a question, float64 [B]."""

    update_norm: Tensor
    relative_change: Tensor
    cosine_change: Tensor


def state_change(h_RSD: Tensor, h_plus_RSD: Tensor, layout: Layout) -> StateChange:
    """How far the update moved the states of each question."""
    valid_RS = layout.batch.attention_mask

    def total(product_RSD: Tensor) -> Tensor:
        per_position_RS = product_RSD.sum(-1, dtype=torch.float64)
        return layout.question_sum((per_position_RS * valid_RS).sum(-1))

    h, h_plus = h_RSD.float(), h_plus_RSD.float()
    d = h_plus - h
    norm_d, norm_h, norm_plus = total(d * d).sqrt(), total(h * h).sqrt(), total(h_plus * h_plus).sqrt()
    both = norm_h * norm_plus
    # 1 − cos loses its digits for small angles; with unit vectors u and u⁺ it is ‖u − u⁺‖²/2, which does not:
    # ‖D‖² = (‖H‖ − ‖H⁺‖)² + 2 ‖H‖ ‖H⁺‖ (1 − cos).
    angular = (norm_d**2 - (norm_h - norm_plus) ** 2).clamp(min=0.0) / (2.0 * both)
    cosine = torch.where(both > 0, angular, torch.zeros_like(both))
    return StateChange(norm_d, norm_d / (norm_h + 1e-12), cosine)
