"""One update H → H⁺ of a batch, as plain data, and what its states alone say.

State diagnostics (Appendix "State and Output Diagnostics") are Frobenius norms over all valid positions; the states of
all options of a question are concatenated.

    ‖D‖,   ‖D‖ / (‖H‖ + 1e-12),   1 − ⟨H, H⁺⟩ / (‖H‖ ‖H⁺‖)

Interventions (Appendix "Immediate Quadratic Scale Selection"): H + αD is interpolated in FP32 and rounded to BF16, so
that its gain is that of a state which the model's arithmetic can hold, not of the ideal interpolant.

Shapes: N reference tokens, R sequences, B questions, S positions, D hidden width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.measuring.batching import Layout, groups_within
from loopscope.path import scale_case


@dataclass(frozen=True)
class Update:
    """The states of a batch before and after an update, and where its reference tokens are."""

    layout: Layout
    before_RSD: Tensor
    after_RSD: Tensor

    def predicting(self) -> tuple[Tensor, Tensor]:
        """H and H⁺ where the reference tokens are predicted, [N, D] each."""
        return predicting(self.before_RSD, self.layout), predicting(self.after_RSD, self.layout)

    def groups(self, most: int, chosen: Sequence[int] | None = None) -> Iterator[Update]:
        """The chosen questions (all of them if left out), at most `most` reference tokens or one question at a time."""
        chosen = range(len(self.layout.questions)) if chosen is None else chosen
        counts = [self.layout.questions[index].example.prediction_count for index in chosen]
        for group in groups_within(counts, most):
            yield self.some([chosen[place] for place in group])

    def some(self, chosen: Sequence[int]) -> Update:
        """The same update of the questions `chosen` alone."""
        rows, layout = self.layout.some(chosen)
        return Update(layout, self.before_RSD[rows], self.after_RSD[rows])


def predicting(state_RSD: Tensor, layout: Layout) -> Tensor:
    """The states whose logits predict the reference tokens, [N, D]."""
    row, place = layout.positions_N2.unbind(1)
    return state_RSD[row, place]


def predicted_scale(slope: Tensor, quadratic: Tensor) -> Tensor:
    """α̂ = min argmax over [0, 1] of Aα + Qα² (Eq. predicted-step), by the same rule (`scale_case`), to the bit.

    What is not finite is not refused here; it is where the columns are put together on the host.

    >>> predicted_scale(torch.tensor([0.5, -0.5, 4.0, 1.0]), torch.tensor([-1.0, -1.0, -1.0, 0.0])).tolist()
    [0.25, 0.0, 1.0, 1.0]
    """
    case = scale_case(slope, quadratic)
    half = 0.5 * (slope / torch.where(case.interior, -quadratic, 1.0))
    return torch.where(case.at_one, 1.0, torch.where(case.interior, half, 0.0))


class StateChange(NamedTuple):
    """One number per question, float64 [B]."""

    update_norm: Tensor
    relative_change: Tensor
    cosine_change: Tensor


def state_change(update: Update) -> StateChange:
    """How far the update moved the states of each question."""
    layout, norms_3RS = update.layout, squared_norms(update.before_RSD, update.after_RSD)
    at_positions = torch.where(layout.batch.attention_mask, norms_3RS, 0.0)
    norm_h, norm_plus, norm_d = layout.question_sum(at_positions.sum(-1).T).sqrt().unbind(1)
    both = norm_h * norm_plus
    # 1 − cos loses its digits for small angles; with unit vectors u and u⁺ it is ‖u − u⁺‖²/2, which does not:
    # ‖D‖² = (‖H‖ − ‖H⁺‖)² + 2 ‖H‖ ‖H⁺‖ (1 − cos).
    angular = (norm_d**2 - (norm_h - norm_plus) ** 2).clamp(min=0.0) / (2.0 * both)
    cosine = torch.where(both > 0, angular, torch.zeros_like(both))
    return StateChange(norm_d, norm_d / (norm_h + 1e-12), cosine)


def squared_norms(h_RSD: Tensor, h_plus_RSD: Tensor) -> Tensor:
    """‖H‖², ‖H⁺‖² and ‖D‖² of every position, float64 [3, R, S]; D and the squares are FP32, of float64 states FP64."""
    found = []
    # A few rows at a time: what is made in between stays in the cache.
    for h, h_plus in zip(torch.split(h_RSD, 8), torch.split(h_plus_RSD, 8), strict=True):
        a, b = (h, h_plus) if h.dtype == torch.float64 else (h.float(), h_plus.float())
        found.append(torch.stack([(x * x).sum(-1, dtype=torch.float64) for x in (a, b, b - a)]))
    return torch.cat(found, 1)


def interpolated(h: Tensor, h_plus: Tensor, scale: Tensor) -> Tensor:
    """H + αD in FP32, rounded to BF16 and returned in the states' dtype; `scale` broadcasts against the states."""
    start = h.float()
    mixed = start + scale.float() * (h_plus.float() - start)
    return mixed.to(torch.bfloat16).to(h.dtype)
