"""One update of a batch: A, Q, ΔU, the grid, diagnostics and interventions (levels quick and grid).

Nothing here waits for the device: columns are tensors there, or follow from them on the host.

Shapes: N reference tokens, R sequences, B questions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from loopscope.measure.affine import Reader
from loopscope.measure.columns import Columns, Later
from loopscope.measure.diagnostics import state_change
from loopscope.measure.interventions import rounded_gains
from loopscope.measure.layout import Layout
from loopscope.measure.parts import part
from loopscope.measure.paths import UpdatePaths
from loopscope.measure.predicted import predicted_scale
from loopscope.measure.settings import Settings
from loopscope.models.protocol import LoopedModel
from loopscope.path import CONTRACTION, classify
from loopscope.path.grids import CURVATURE_SCALES, GRID
from loopscope.store.levels import Level


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
