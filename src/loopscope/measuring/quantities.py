"""The quadratic scale where the coefficients are: `loopscope.path.predicted_scale` for tensors on a device.

State diagnostics of an update over all valid positions (Appendix "State and Output Diagnostics").

Norms are Frobenius norms; the states of all options of a question are concatenated.

    ‖D‖,   ‖D‖ / (‖H‖ + 1e-12),   1 − ⟨H, H⁺⟩ / (‖H‖ ‖H⁺‖)

Shapes: R sequences, S positions, D hidden width, B questions.

Interventions on rounded states (Appendix "Immediate Quadratic Scale Selection").

H + αD is interpolated in FP32 over all valid positions, padding keeps the proposed state, the result is rounded to
BF16 and read out in FP32. The gain is measured against the same H, so it is the gain of a state that the model's own
arithmetic can hold, not of the ideal interpolant. An affine head reads the prediction positions alone, so only those
are interpolated for it.

Shapes: N reference tokens, R sequences, B questions, S positions, D hidden width.

One update of a batch: A, Q, ΔU, the grid, diagnostics and interventions (levels quick and grid).

Nothing here waits for the device: columns are tensors there, or follow from them on the host.

Shapes: N reference tokens, R sequences, B questions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from loopscope.kernels.choice import Implementation, takes_kernel
from loopscope.measuring.columns import Columns, Later
from loopscope.measuring.layout import Layout
from loopscope.measuring.reading import Reader, Reading, predicting, read, read_two
from loopscope.measuring.settings import Settings
from loopscope.measuring.timing import part
from loopscope.measuring.update import UpdatePaths
from loopscope.models.protocol import LoopedModel
from loopscope.path import CONTRACTION, classify, scale_case
from loopscope.path.grids import CURVATURE_SCALES, GRID
from loopscope.store.tables import Level


def predicted_scale(slope: Tensor, quadratic: Tensor) -> Tensor:
    """α̂ = min argmax over [0, 1] of Aα + Qα² (Eq. predicted-step), by the same rule (`scale_case`), to the bit.

    What is not finite is not refused here; it is where the columns are put together on the host.

    >>> predicted_scale(torch.tensor([0.5, -0.5, 4.0, 1.0]), torch.tensor([-1.0, -1.0, -1.0, 0.0])).tolist()
    [0.25, 0.0, 1.0, 1.0]
    """
    case = scale_case(slope, quadratic)
    half = 0.5 * (slope / torch.where(case.interior, -quadratic, 1.0))
    return torch.where(case.at_one, 1.0, torch.where(case.interior, half, 0.0))


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
        from loopscope.measuring.norm_kernels import squared_norms as kernel

        return kernel(h_RSD, h_plus_RSD)
    found = []
    # A few rows at a time: what is made in between stays in the cache.
    for h, h_plus in zip(torch.split(h_RSD, 8), torch.split(h_plus_RSD, 8), strict=True):
        a, b = (h, h_plus) if h.dtype == torch.float64 else (h.float(), h_plus.float())
        found.append(torch.stack([(x * x).sum(-1, dtype=torch.float64) for x in (a, b, b - a)]))
    return torch.cat(found, 1)


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


def update_columns(
    model: LoopedModel,
    h_RSD: Tensor,
    h_plus_RSD: Tensor,
    layout: Layout,
    settings: Settings,
    paths: UpdatePaths,
    reader: Reader | None,
) -> Columns:
    """The columns of `questions` that describe one update, one row a question; `reader` where the head is affine."""
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
        return columns
    device, dtype = gain.device, getattr(torch, settings.readout_dtype)
    columns["grid_gain"] = gains_BK
    columns["curvature_path"] = derivatives_3BK[2]
    with part("own scale", device):
        columns["quadratic_gain"] = path.at_own(scale, 0)[0]
    outputs = paths.outputs
    assert outputs is not None, "every level but quick asks for them"
    if reader is not None and not layout.is_options:
        columns["kl_correction"] = outputs.divergence_R
        columns["kl_residual"] = gain - (slope - outputs.divergence_R)
    columns["output_kl"] = layout.question_mean(outputs.divergence_R)
    columns["entropy_change"] = layout.question_mean(outputs.entropy_R)
    with part("diagnostics", device):
        columns.update(state_change(h_RSD, h_plus_RSD, layout)._asdict())
    with part("rounded", device):
        chosen = (torch.full_like(gain, CONTRACTION), scale)
        rounded = rounded_gains(model, h_RSD, h_plus_RSD, chosen, layout, dtype, before, reader)
        columns["bf16_quarter_gain"], columns["bf16_quadratic_gain"] = rounded
    return columns


def outcome(columns: Columns) -> np.ndarray[Any, Any]:
    """The class of each update, on the host."""
    return np.atleast_1d(classify(columns["slope"], columns["gain"]))
