"""Every reference token as an update of its own, and what the model's own exit gate would have done at its position.

Both are the paper's "Token-Level Audit of Early Recurrent Updates" (appendix). Utility is the log probability of one
token; A, Q, ΔU, the quarter step and the quadratic step are along that position's own displacement where the readout is
affine, and along the whole sequence's otherwise.

Shapes: R sequences, S positions, N reference tokens, T loops of the budget.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from loopscope.measuring.layout import Layout
from loopscope.measuring.settings import Settings
from loopscope.measuring.transfer import Columns, Later
from loopscope.measuring.update import outcome, predicted_scale
from loopscope.models.exit_gate import ExitGate, exit_gate_of
from loopscope.path import CONTRACTION, GRID
from loopscope.readout.composed import RememberedPath
from loopscope.store.schema import Level


@dataclass
class GateTrace:
    """The gate's logits at the prediction positions [N, 2] of the reference tokens, at depths 1..T.

    Published arithmetic is that of the states. The FP64 reconstruction runs the same policy on FP64 logits.
    """

    gate: ExitGate
    threshold: float
    positions_N2: Tensor
    published: list[Tensor] = field(default_factory=list)
    rebuilt: list[Tensor] = field(default_factory=list)

    def see(self, depth: int, state_RSD: Tensor) -> None:
        """Take note of a state; depths beyond the budget do not count."""
        if 1 <= depth <= self.gate.budget:
            row, place = self.positions_N2.unbind(1)
            self.published.append(self.gate.logits(state_RSD, None)[row, place])
            self.rebuilt.append(self.gate.logits(state_RSD[row, place][None], torch.float64)[0])

    def decide(self) -> TokenDecisions | None:
        """The policy's decisions, once the whole budget was seen."""
        if len(self.published) < self.gate.budget:
            return None
        compared_NT = self.gate.compared(self.published)
        return TokenDecisions(
            compared_NT.double(),
            self.gate.exit_depth(compared_NT, self.threshold),
            self.gate.exit_depth(self.gate.compared(self.rebuilt), self.threshold),
        )


@dataclass(frozen=True)
class TokenDecisions:
    """Where every reference token's prediction position exits, [N], and what the policy compared there, [N, T]."""

    compared_NT: Tensor
    exit_depth_N: Tensor
    exit_depth_fp64_N: Tensor

    def compared_at(self, transition: int) -> Tensor:
        """Exit CDF through depth t, or the confidence at t, [N]; 0 before the first loop, the last one beyond it."""
        budget = self.compared_NT.shape[-1]
        if transition == 0:
            return torch.zeros_like(self.compared_NT[..., 0])
        return self.compared_NT[..., min(transition, budget) - 1]


def gate_trace(model: object, threshold: float | None, positions_N2: Tensor) -> GateTrace | None:
    """A trace for a model that has a gate; None for others."""
    gate = exit_gate_of(model)
    return None if gate is None else GateTrace(gate, gate.threshold if threshold is None else threshold, positions_N2)


def token_columns(path: RememberedPath, layout: Layout, settings: Settings) -> Columns:
    """The columns of `tokens` for one update, one row per reference token."""
    _, slope, curvature = path.at_scales([0.0], 2)[..., 0]
    quarter, gain = path.at_scales([CONTRACTION, 1.0], 0)[0].unbind(1)
    quadratic = 0.5 * curvature
    scale = predicted_scale(slope, quadratic)
    columns: Columns = {
        **token_identity(layout),
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


def token_identity(layout: Layout) -> Columns:
    """Which token of which option of which question each row is, and where it stands in the text."""
    rows, options, tokens, positions = [], [], [], []
    starts: list[int | None] = []
    ends: list[int | None] = []
    for question in layout.questions:
        for option, sequence in enumerate(question.example.sequences):
            count = len(sequence.positions)
            rows.append(np.full(count, question.row))
            options.append(np.full(count, option))
            tokens.append(np.arange(count))
            positions.append(np.asarray(sequence.positions))
            spans = None if question.spans is None else question.spans[option]
            starts += [None] * count if spans is None else [span.start for span in spans]
            ends += [None] * count if spans is None else [span.end for span in spans]
    return {
        "row": np.concatenate(rows),
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
        "exit_cdf": decisions.compared_at(transition),
        "exit_depth": decisions.exit_depth_N,
        "exit_depth_fp64": decisions.exit_depth_fp64_N,
    }
