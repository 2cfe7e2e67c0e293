"""Every reference token as an update of its own (Appendix "Token-Level Audit of Early Recurrent Updates").

Utility is the log probability of one token; A, Q, ΔU, the quarter step and the quadratic step are along that
position's own displacement where the readout is affine, and along the whole sequence's otherwise.
"""

from __future__ import annotations

import numpy as np

from loopscope.measure.columns import Columns, Later
from loopscope.measure.gate import TokenDecisions
from loopscope.measure.layout import Layout
from loopscope.measure.predicted import predicted_scale
from loopscope.measure.settings import Settings
from loopscope.measure.update import outcome
from loopscope.path import CONTRACTION
from loopscope.path.grids import GRID
from loopscope.readout.composed import RememberedPath
from loopscope.store.levels import Level


def token_columns(path: RememberedPath, layout: Layout, settings: Settings) -> Columns:
    """The columns of `tokens` for one update, one row a reference token."""
    _, slope, curvature = path.at_scales([0.0], 2)[..., 0]
    quarter, gain = path.at_scales([CONTRACTION, 1.0], 0)[0].unbind(1)
    quadratic = 0.5 * curvature
    scale = predicted_scale(slope, quadratic)
    columns: Columns = {
        **_identity(layout),
        "utility_before": path.initial_N,
        "gain": gain,
        "slope": slope,
        "quadratic": quadratic,
        "outcome": Later(outcome),
        "quadratic_scale": scale,
        "quarter_gain": quarter,
        "quadratic_gain": path.at_own(scale, 0)[0],
    }
    if settings.level is not Level.QUICK:
        columns["grid_gain"] = path.at_scales(list(GRID), 0)[0].float()
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
        "token_id": layout.targets_N,
        "text_start": starts,
        "text_end": ends,
    }


def gate_columns(decisions: TokenDecisions, transition: int) -> Columns:
    """What the exit gate decided at each reference token's prediction position."""
    return {
        "exit_cdf": decisions.cdf_through(transition),
        "exit_depth": decisions.exit_depth_N,
        "exit_depth_fp64": decisions.exit_depth_fp64_N,
        "continues": decisions.continues(transition),
    }
