"""Every reference token as an update of its own (Appendix "Token-Level Audit of Early Recurrent Updates").

Utility is the log probability of one token; A, Q, ΔU, the quarter step and the quadratic step are along that
position's own displacement where the readout is affine, and along the whole sequence's otherwise.
"""

from __future__ import annotations

import numpy as np
import torch

from loopscope.measure.columns import Columns, array
from loopscope.measure.gate import GateDecision
from loopscope.measure.layout import Layout
from loopscope.measure.paths import RememberedPath
from loopscope.measure.settings import Settings
from loopscope.path import CONTRACTION, classify, predicted_scale
from loopscope.store.levels import Level
from loopscope.store.tables.grids import GRID


def token_columns(path: RememberedPath, layout: Layout, settings: Settings) -> Columns:
    """The columns of `tokens` for one update, one row a reference token."""
    start = path.derivatives(0.0, 2).stack
    ends = path.value([CONTRACTION, 1.0])
    slope, quadratic, gain = array(start[1]), array(0.5 * start[2]), array(ends[:, 1])
    scale = predicted_scale(slope, quadratic)
    columns: Columns = {
        **_identity(layout),
        "utility_before": array(path.initial_utility),
        "gain": gain,
        "slope": slope,
        "quadratic": quadratic,
        "outcome": np.atleast_1d(classify(slope, gain)),
        "quadratic_scale": scale,
        "quarter_gain": array(ends[:, 0]),
        "quadratic_gain": array(path.at(torch.as_tensor(scale, device=ends.device), 0).value),
    }
    if settings.level is not Level.QUICK:
        columns["grid_gain"] = array(path.value(list(GRID))).astype(np.float32)
    return columns


def _identity(layout: Layout) -> Columns:
    """Which token of which option of which question each row is, and where it stands in the text."""
    rows, ids, options, tokens, positions = [], [], [], [], []
    starts: list[int | None] = []
    ends: list[int | None] = []
    for question in layout.questions:
        for option, sequence in enumerate(question.example.sequences):
            count = len(sequence.positions)
            rows.append(np.full(count, question.row))
            ids += [question.example.id] * count
            options.append(np.full(count, option))
            tokens.append(np.arange(count))
            positions.append(np.asarray(sequence.positions))
            spans = None if question.spans is None else question.spans[option]
            starts += [None] * count if spans is None else [span.start for span in spans]
            ends += [None] * count if spans is None else [span.end for span in spans]
    return {
        "row": np.concatenate(rows),
        "example_id": np.asarray(ids, dtype=object),
        "option": np.concatenate(options),
        "token": np.concatenate(tokens),
        "position": np.concatenate(positions),
        "token_id": array(layout.targets_N),
        "text_start": starts,
        "text_end": ends,
    }


def gate_columns(decision: GateDecision, layout: Layout, transition: int) -> Columns:
    """What the exit gate decided at each reference token's prediction position."""
    row, place = layout.positions_N2.unbind(1)
    return {
        "exit_cdf": array(decision.cdf_through(transition)[row, place]),
        "exit_depth": array(decision.exit_depth_RS[row, place]),
        "exit_depth_fp64": array(decision.exit_depth_fp64_RS[row, place]),
        "continues": array(decision.continues(transition)[row, place]),
    }
