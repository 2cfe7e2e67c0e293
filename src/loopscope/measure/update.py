"""One update of a batch: A, Q, ΔU, the grid, diagnostics and interventions (levels quick and grid).

Shapes: N reference tokens, R sequences, B questions.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from loopscope.measure.columns import Columns, array
from loopscope.measure.diagnostics import state_change
from loopscope.measure.interventions import rounded_gain
from loopscope.measure.layout import Layout
from loopscope.measure.paths import SequencePath, UpdatePaths
from loopscope.measure.settings import Settings
from loopscope.measure.utility import Reading, logits, pieces
from loopscope.models.protocol import LoopedModel
from loopscope.path import CONTRACTION, classify, predicted_scale
from loopscope.readout.affine import AffinePath, affine_path
from loopscope.store.levels import Level
from loopscope.store.tables.grids import CURVATURE_SCALES, GRID


def update_columns(
    model: LoopedModel,
    h_RSD: Tensor,
    h_plus_RSD: Tensor,
    layout: Layout,
    settings: Settings,
    paths: UpdatePaths,
    before: Reading,
) -> Columns:
    """The columns of `questions` that describe one update, one row a question."""
    path, affine = paths.questions, model.head is not None
    if settings.level is Level.QUICK:
        ends = path.derivatives([0.0, 1.0] if affine else [0.0], 2).stack
        gain = path.value(1.0)
    else:
        # An affine path has its derivatives almost for nothing; through a nonlinear readout they are what costs.
        ends = path.derivatives(list(GRID) if affine else list(CURVATURE_SCALES), 2).stack
        grid_gain = path.value(list(GRID))
        gain = grid_gain[:, -1]
    slope, quadratic = array(ends[1, :, 0]), array(0.5 * ends[2, :, 0])
    scale = predicted_scale(slope, quadratic)
    columns: Columns = {
        "utility_before": array(before.utility_B),
        "utility_after": array(before.utility_B + gain),
        "gain": array(gain),
        "slope": slope,
        "quadratic": quadratic,
        "outcome": np.atleast_1d(classify(slope, array(gain))),
        "quadratic_scale": scale,
    }
    if settings.level is Level.QUICK:
        return columns
    dtype = getattr(torch, settings.readout_dtype)
    scale_B = torch.as_tensor(scale, device=gain.device)
    columns["grid_gain"] = array(grid_gain)
    columns["curvature_path"] = array(path.derivatives(list(CURVATURE_SCALES), 2).stack[2])
    columns["quadratic_gain"] = array(path.at(scale_B, 0).value)
    outputs = endpoint_outputs(model, paths.sequences, h_RSD, h_plus_RSD, layout, dtype)
    if affine and not layout.is_options:
        correction = array(outputs.divergence_R)
        columns["kl_correction"] = correction
        columns["kl_residual"] = columns["gain"] - (slope - correction)
    for name, values in state_change(h_RSD, h_plus_RSD, layout)._asdict().items():
        columns[name] = array(values)
    columns["output_kl"] = array(layout.question_mean(outputs.divergence_R))
    columns["entropy_change"] = array(layout.question_mean(outputs.entropy_change_R))
    for name, chosen in (("quarter", torch.full_like(gain, CONTRACTION)), ("quadratic", scale_B)):
        columns[f"bf16_{name}_gain"] = array(rounded_gain(model, h_RSD, h_plus_RSD, chosen, layout, dtype, before))
    return columns


class EndpointOutputs:
    """How the output distributions of H and H⁺ differ, averaged over each sequence's prediction positions, [R]."""

    def __init__(self, divergence_R: Tensor, entropy_change_R: Tensor) -> None:
        self.divergence_R, self.entropy_change_R = divergence_R, entropy_change_R


def endpoint_outputs(
    model: LoopedModel, path: SequencePath, h_RSD: Tensor, h_plus_RSD: Tensor, layout: Layout, dtype: torch.dtype
) -> EndpointOutputs:
    """KL(p(0)‖p(1)) and the change of entropy from H to H⁺."""
    if isinstance(path, AffinePath):
        found = path.distributions
        return EndpointOutputs(found.divergence, found.entropy_change)
    parts = []
    for piece in pieces(model, layout):
        z0_nV = logits(model, h_RSD, layout, piece, dtype)
        z1_nV = logits(model, h_plus_RSD, layout, piece, dtype)
        owner_n = layout.sequence_N[piece.tokens] - piece.rows.start
        # Divergence and entropies depend on the two ends alone, so the straight line between them will do.
        parts.append(affine_path(z0_nV, z1_nV - z0_nV, layout.targets_N[piece.tokens], examples=owner_n).distributions)
    return EndpointOutputs(
        torch.cat([part.divergence for part in parts]), torch.cat([part.entropy_change for part in parts])
    )
