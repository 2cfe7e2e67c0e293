"""One update H → H⁺ of a batch: A, Q, ΔU, the grid, diagnostics and interventions (levels quick and grid).

Tokens, sequences and questions share every evaluation of the readout; the coarser paths are made from the tokens'.

    token → mean over a sequence's tokens → the question itself, or log-softmax over its options

State diagnostics (Appendix "State and Output Diagnostics") are Frobenius norms over all valid positions; the states of
all options of a question are concatenated.

    ‖D‖,   ‖D‖ / (‖H‖ + 1e-12),   1 − ⟨H, H⁺⟩ / (‖H‖ ‖H⁺‖)

Interventions (Appendix "Immediate Quadratic Scale Selection"): H + αD is interpolated in FP32, rounded to BF16 and read
out in FP32. The gain is measured against the same H, so it is the gain of a state that the model's own arithmetic can
hold, not of the ideal interpolant.

Nothing here waits for the device: columns are tensors there, or follow from them on the host.

Shapes: N reference tokens, R sequences, B questions, S positions, D hidden width, K scales.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from loopscope.measuring.layout import Layout, groups_within
from loopscope.measuring.settings import Settings
from loopscope.measuring.transfer import Columns, Later
from loopscope.path import CONTRACTION, CURVATURE_SCALES, GRID, classify, scale_case
from loopscope.readout.composed import RememberedPath
from loopscope.readout.path import UtilityPath
from loopscope.store.schema import Level

if TYPE_CHECKING:
    from loopscope.measuring.reading import GeneralReadout, Reading


@dataclass(frozen=True)
class Update:
    """An update of a batch, and what reads it.

    Attributes:
        readout: the model's readout, affine or general.
        layout: where the reference tokens are.
        before_RSD: H.
        after_RSD: H⁺.
    """

    readout: GeneralReadout
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
        return Update(self.readout, layout, self.before_RSD[rows], self.after_RSD[rows])


def predicting(state_RSD: Tensor, layout: Layout) -> Tensor:
    """The states whose logits predict the reference tokens, [N, D]."""
    row, place = layout.positions_N2.unbind(1)
    return state_RSD[row, place]


class Scales(NamedTuple):
    """What a survey is asked for: φ at `points` even scales, derivatives to the second at some of them."""

    points: int
    with_derivatives: tuple[float, ...]

    @classmethod
    def of(cls, level: Level, *, tokens: bool) -> Scales:
        """What a level stores; token rows hold the gain of a quarter step besides."""
        if level is not Level.QUICK:
            return cls(len(GRID), CURVATURE_SCALES)
        return cls(len(CURVATURE_SCALES) if tokens else 2, (0.0,))


@dataclass(frozen=True)
class OutputChange:
    """How the output distributions of H and H⁺ differ, averaged over each sequence's prediction positions, [R] each.

    Attributes:
        divergence_R: KL(p(0)‖p(1)).
        entropy_R: the change of entropy from H to H⁺.
    """

    divergence_R: Tensor
    entropy_R: Tensor


@dataclass(frozen=True)
class UpdatePaths:
    """φ of one update of a batch at two grains, and what was read on the way.

    Attributes:
        tokens: every reference token.
        questions: every question.
        before: the reading of H.
        after: the reading of H⁺, where it was read.
        outputs: how the outputs differ; None where they would cost more and nobody asks.
        interpolation: the columns of that table; None where every scale of the grid is evaluated.
    """

    tokens: RememberedPath
    questions: UtilityPath
    before: Reading
    after: Reading | None
    outputs: OutputChange | None
    interpolation: Columns | None = None

    def log_p_after(self) -> Tensor:
        """Log probability of each reference token at H⁺, [N]: that at H, and what the update gained."""
        return self.before.log_p_N + self.tokens.at_scales([1.0], 0)[0, :, 0]


def update_columns(update: Update, paths: UpdatePaths, settings: Settings) -> Columns:
    """The columns of `questions` that describe one update, one row per question."""
    path, before = paths.questions, paths.before
    quick = settings.level is Level.QUICK
    # Highest order first: through a nonlinear readout derivatives are what costs, and they bring the values along.
    derivatives_3BK = path.at_scales([0.0] if quick else list(CURVATURE_SCALES), 2)
    gains_BK = path.at_scales([1.0] if quick else list(GRID), 0)[0]
    gain = gains_BK[:, -1]
    slope, quadratic = derivatives_3BK[1, :, 0], 0.5 * derivatives_3BK[2, :, 0]
    scale = predicted_scale(slope, quadratic)
    columns: Columns = {
        "utility_before": before.utility_B,
        "utility_after": before.utility_B + gain,
        "gain": gain,
        "slope": slope,
        "quadratic": quadratic,
        "outcome": Later(outcome),
        "quadratic_scale": scale,
    }
    if quick:
        return columns | (_short_steps(update, paths, scale) if settings.short_steps else {})
    layout = update.layout
    columns["grid_gain"] = gains_BK
    columns["curvature_path"] = derivatives_3BK[2]
    columns["quadratic_gain"] = path.at_own(scale, 0)[0]
    outputs = paths.outputs
    assert outputs is not None, "every level but quick asks for them"
    if update.readout.is_affine and not layout.is_options:
        columns["kl_correction"] = outputs.divergence_R
    columns["output_kl"] = layout.question_mean(outputs.divergence_R)
    columns["entropy_change"] = layout.question_mean(outputs.entropy_R)
    columns.update(state_change(update)._asdict())
    chosen = (torch.full_like(gain, CONTRACTION), scale)
    quarter, quadratic_step = update.readout.read_rounded(update, chosen)
    columns["bf16_quarter_gain"] = quarter.utility_B - before.utility_B
    columns["bf16_quadratic_gain"] = quadratic_step.utility_B - before.utility_B
    return columns


def _short_steps(update: Update, paths: UpdatePaths, scale_B: Tensor) -> Columns:
    """What a quarter step and the quadratic step would give, as level grid finds it."""
    if update.readout.is_affine:
        path = paths.questions
        quarter, quadratic = path.at_scales([CONTRACTION], 0)[0, :, 0], path.at_own(scale_B, 0)[0]
    else:
        found = update.readout.read_steps(update, (torch.full_like(scale_B, CONTRACTION), scale_B))
        quarter, quadratic = (reading.utility_B - paths.before.utility_B for reading in found)
        quadratic = torch.where(scale_B == 0.0, 0.0, quadratic)
    return {"quarter_gain": quarter, "quadratic_gain": quadratic}


def outcome(columns: Columns) -> np.ndarray[Any, Any]:
    """The class of each update, on the host."""
    return np.atleast_1d(classify(columns["slope"], columns["gain"]))


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
