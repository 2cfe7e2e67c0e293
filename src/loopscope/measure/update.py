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
from loopscope.measure.paths import SequencePath, question_path, sequence_path
from loopscope.measure.settings import Settings
from loopscope.models.protocol import LoopedModel
from loopscope.path import CONTRACTION, classify, predicted_scale
from loopscope.readout.affine import AffinePath, affine_path
from loopscope.readout.endpoint import EndpointDistributions
from loopscope.store.levels import Level
from loopscope.store.tables.grids import CURVATURE_SCALES, GRID


def update_columns(
    model: LoopedModel, h_RSD: Tensor, h_plus_RSD: Tensor, layout: Layout, settings: Settings
) -> Columns:
    """The columns of `questions` that describe one update, one row a question."""
    dtype = getattr(torch, settings.readout_dtype)
    sequences = sequence_path(model, h_RSD, h_plus_RSD, layout, dtype)
    path = question_path(sequences, layout)
    if settings.level is Level.QUICK:
        ends = path.derivatives([0.0, 1.0], 2).stack
        gains, slope, curvature = ends[0], ends[1, :, 0], ends[2, :, 0]
    else:
        grid = path.derivatives(list(GRID), 2 if model.head is not None else 0).stack
        gains = grid[0]
        five = grid if model.head is not None else path.derivatives(list(CURVATURE_SCALES), 2).stack
        slope, curvature = five[1, :, 0], five[2, :, 0]
    before = path.initial_utility
    gain = gains[:, -1]
    columns: Columns = {
        "utility_before": before,
        "utility_after": before + gain,
        "gain": gain,
        "slope": slope,
        "quadratic": 0.5 * curvature,
    }
    arrays = {name: array(values) for name, values in columns.items()}
    arrays["outcome"] = np.atleast_1d(classify(arrays["slope"], arrays["gain"]))
    scale_B = predicted_scale(arrays["slope"], arrays["quadratic"])
    arrays["quadratic_scale"] = scale_B
    if settings.level is Level.QUICK:
        return arrays
    every = (len(GRID) - 1) // (len(CURVATURE_SCALES) - 1)
    arrays["grid_gain"] = array(gains)
    arrays["curvature_path"] = array(five[2, :, ::every] if five.shape[-1] == len(GRID) else five[2])
    arrays["quadratic_gain"] = array(path.at(torch.as_tensor(scale_B), 0).value)
    if isinstance(sequences, AffinePath) and not layout.is_options:
        arrays["kl_correction"] = array(sequences.divergence)
        arrays["kl_residual"] = array(sequences.decomposition.residual)
    for name, values in state_change(h_RSD, h_plus_RSD, layout)._asdict().items():
        arrays[name] = array(values)
    outputs = endpoint_outputs(model, sequences, h_RSD, h_plus_RSD, layout, dtype)
    arrays["output_kl"] = array(layout.question_mean(outputs.divergence))
    arrays["entropy_change"] = array(layout.question_mean(outputs.entropy_change))
    scales = {"quarter": torch.full_like(gain, CONTRACTION), "quadratic": torch.as_tensor(scale_B, device=gain.device)}
    for name, scale in scales.items():
        arrays[f"bf16_{name}_gain"] = array(rounded_gain(model, h_RSD, h_plus_RSD, scale, layout, dtype))
    return arrays


def endpoint_outputs(
    model: LoopedModel, path: SequencePath, h_RSD: Tensor, h_plus_RSD: Tensor, layout: Layout, dtype: torch.dtype
) -> EndpointDistributions:
    """How the two ends' output distributions differ, averaged over each sequence's prediction positions, [R]."""
    if isinstance(path, AffinePath):
        return path.distributions
    z0_NV = model.readout(h_RSD, layout.positions_N2, dtype).double()
    z1_NV = model.readout(h_plus_RSD, layout.positions_N2, dtype).double()
    # Divergence and entropies depend on the two ends alone, so the straight line between them will do.
    return affine_path(z0_NV, z1_NV - z0_NV, layout.targets_N, examples=layout.sequence_N).distributions
