"""Q a second way on the first questions of a task (Appendix "Execution and differentiation").

The scalar second derivative of U along the normalised chord over all valid positions, by automatic differentiation
through the same readout: it passes if it agrees with Q to 1e-6 absolute or 1e-4 relative.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from loopscope.measure.columns import Columns
from loopscope.measure.layout import Layout
from loopscope.models.protocol import LoopedModel
from loopscope.readout.autograd import chord_curvature
from loopscope.readout.options import joint_option_utility

ABSOLUTE, RELATIVE = 1e-6, 1e-4


def scalar_quadratic(
    model: LoopedModel, h_RSD: Tensor, h_plus_RSD: Tensor, layout: Layout, question: int, dtype: torch.dtype
) -> float:
    """Q = φ''(0)/2 of one question of the batch, by the scalar second derivative along its chord."""
    rows_r = torch.nonzero(layout.question_R == question)[:, 0]
    first, count = int(rows_r[0]), int(rows_r.shape[0])
    tokens_n = torch.nonzero((layout.sequence_N >= first) & (layout.sequence_N < first + count))[:, 0]
    offset = torch.tensor([first, 0], device=layout.positions_N2.device)
    positions_n2 = layout.positions_N2[tokens_n] - offset
    targets_n1 = layout.targets_N[tokens_n, None]
    sequence_n = layout.sequence_N[tokens_n] - first
    lengths_r = torch.bincount(sequence_n, minlength=count).double()

    def utility(state_rSD: Tensor) -> Tensor:
        z_nV = model.readout(state_rSD, positions_n2, dtype).double()
        log_p_n = torch.log_softmax(z_nV, -1).gather(1, targets_n1)[:, 0]
        scores_r = torch.zeros(count, dtype=torch.float64, device=z_nV.device).index_add(0, sequence_n, log_p_n)
        scores_r = scores_r / lengths_r
        if layout.correct_B is None:
            return scores_r[0]
        return joint_option_utility(scores_r, torch.zeros_like(rows_r), layout.correct_B[question, None])[0]

    state = h_RSD[rows_r].to(dtype)
    valid = layout.batch.attention_mask[rows_r].unsqueeze(-1)
    displacement = torch.where(valid, h_plus_RSD[rows_r].to(dtype) - state, torch.zeros_like(state))
    return 0.5 * float(chord_curvature(utility, state, displacement))


def agrees(quadratic: float, scalar: float) -> bool:
    """The paper's disjunctive criterion."""
    gap = abs(quadratic - scalar)
    return gap <= ABSOLUTE or gap <= RELATIVE * abs(scalar)


def scalar_check_columns(
    model: LoopedModel,
    h_RSD: Tensor,
    h_plus_RSD: Tensor,
    layout: Layout,
    dtype: torch.dtype,
    quadratic_B: Sequence[float],
    checked_B: Sequence[bool],
) -> Columns:
    """The second calculation of Q where it is asked for, null elsewhere."""
    scalars = [
        scalar_quadratic(model, h_RSD, h_plus_RSD, layout, index, dtype) if checked else None
        for index, checked in enumerate(checked_B)
    ]
    passed = [
        None if scalar is None else agrees(float(quadratic), scalar)
        for quadratic, scalar in zip(quadratic_B, scalars, strict=True)
    ]
    return {"scalar_quadratic": scalars, "scalar_check_passed": passed}
