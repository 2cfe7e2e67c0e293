"""State diagnostics of an update over all valid positions (Appendix "State and Output Diagnostics").

Norms are Frobenius norms; the states of all options of a question are concatenated.

    ‖D‖,   ‖D‖ / (‖H‖ + 1e-12),   1 − ⟨H, H⁺⟩ / (‖H‖ ‖H⁺‖)

Shapes: R sequences, S positions, D hidden width, B questions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.kernels.choice import Implementation, takes_kernel
from loopscope.measure.layout import Layout

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class StateChange(NamedTuple):
    """One number a question, float64 [B]."""

    update_norm: Tensor
    relative_change: Tensor
    cosine_change: Tensor


def state_change(h_RSD: Tensor, h_plus_RSD: Tensor, layout: Layout) -> StateChange:
    """How far the update moved the states of each question."""
    at_positions = torch.where(layout.batch.attention_mask, squared_norms(h_RSD, h_plus_RSD), 0.0)
    norm_h, norm_plus, norm_d = layout.question_sum(at_positions.sum(-1).T).sqrt().unbind(1)
    both = norm_h * norm_plus
    # 1 − cos loses its digits for small angles; with unit vectors u and u⁺ it is ‖u − u⁺‖²/2, which does not:
    # ‖D‖² = (‖H‖ − ‖H⁺‖)² + 2 ‖H‖ ‖H⁺‖ (1 − cos).
    angular = (norm_d**2 - (norm_h - norm_plus) ** 2).clamp(min=0.0) / (2.0 * both)
    cosine = torch.where(both > 0, angular, torch.zeros_like(both))
    return StateChange(norm_d, norm_d / (norm_h + 1e-12), cosine)


def squared_norms(h_RSD: Tensor, h_plus_RSD: Tensor, impl: Implementation | None = None) -> Tensor:
    """‖H‖², ‖H⁺‖² and ‖D‖² of every position, float64 [3, R, S]; D and the squares are FP32, of float64 states FP64."""
    if takes_kernel(h_RSD, impl, _DTYPES):
        from loopscope.measure.kernels.squared_norms import squared_norms as kernel

        return kernel(h_RSD, h_plus_RSD)
    found = []
    # A few rows at a time: what is made in between stays in the cache.
    for h, h_plus in zip(torch.split(h_RSD, 8), torch.split(h_plus_RSD, 8), strict=True):
        a, b = (h, h_plus) if h.dtype == torch.float64 else (h.float(), h_plus.float())
        found.append(torch.stack([(x * x).sum(-1, dtype=torch.float64) for x in (a, b, b - a)]))
    return torch.cat(found, 1)
