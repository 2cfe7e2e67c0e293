"""Q a second way, on the first questions of a task (Appendix "Execution and differentiation").

The scalar second derivative of U along the normalised chord over all valid positions, by automatic differentiation
through the same readout. It passes if it agrees with Q to 1e-6 absolute or 1e-4 relative. Questions do not interact, so
one second derivative serves several of them, each along its own chord.

Shapes: R sequences, S positions, D hidden width, N reference tokens, B questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loopscope.errors import LoopscopeError, setting
from loopscope.measuring.groups import LOGITS
from loopscope.measuring.transfer import Columns, Later
from loopscope.measuring.update import Update
from loopscope.models.walk import read
from loopscope.readout.affine.sources import full_precision_products
from loopscope.readout.hessian_vector import chord_curvatures
from loopscope.readout.options import grouped_option_utility

ABSOLUTE, RELATIVE = 1e-6, 1e-4
_LOGITS = {"cpu": LOGITS // 4}
"""Logits at a time, where not `LOGITS`: both derivatives keep some ten float64 arrays of that size."""


def scalar_quadratics(update: Update) -> Tensor:
    """Q = φ''(0)/2 of every question, by the scalar second derivative along its chord, float64 [B]."""
    model, dtype, layout = update.readout.model, update.readout.dtype, update.layout
    targets_N1 = layout.targets_N.unsqueeze(1)
    sequences = torch.arange(len(layout.counts), device=layout.sequence_N.device)
    mean_RN = (sequences.unsqueeze(1) == layout.sequence_N).double() / layout.tokens_R.unsqueeze(1)

    def utility(state_RSD: Tensor) -> Tensor:
        z_NV = read(model, state_RSD, layout.positions_N2, dtype, layout.context).double()
        scores_R = mean_RN @ torch.log_softmax(z_NV, -1).gather(1, targets_N1)[:, 0]
        return scores_R if layout.options is None else grouped_option_utility(scores_R, layout.options)

    width = update.readout.width(layout, max(layout.lengths))
    state = update.before_RSD[:, :width].to(dtype)
    valid = layout.batch.attention_mask[:, :width].unsqueeze(-1)
    displacement = torch.where(valid, update.after_RSD[:, :width].to(dtype) - state, torch.zeros_like(state))
    try:
        with full_precision_products():
            return 0.5 * chord_curvatures(utility, state, displacement, layout.question_R, len(layout.questions))
    except RuntimeError as error:
        if "not implemented" not in str(error):
            raise
        raise LoopscopeError(
            f"torch cannot differentiate this readout twice, so Q cannot be computed a second way ({error}); "
            f"leave the check out with {setting('scalar_checks', 0)}"
        ) from error


def agrees(quadratic: float, scalar: float) -> bool:
    """The paper's disjunctive criterion."""
    gap = abs(quadratic - scalar)
    return gap <= ABSOLUTE or gap <= RELATIVE * abs(scalar)


def scalar_check_columns(update: Update, checked_B: Sequence[bool]) -> Columns:
    """The second calculation of Q where it is asked for, null elsewhere; beside the column `quadratic`."""
    readout, device = update.readout, update.before_RSD.device
    chosen = [index for index, checked in enumerate(checked_B) if checked]
    # One question at a time where the readout is more than a head.
    most = _LOGITS.get(device.type, LOGITS) // readout.model.vocabulary_size if readout.is_affine else 0
    found = [scalar_quadratics(group) for group in update.groups(most, chosen)]
    scalars = torch.cat(found) if found else torch.zeros(0, dtype=torch.float64, device=device)

    def spread(columns: Columns, values: np.ndarray[Any, Any]) -> list[float | None]:
        held = dict(zip(chosen, values.tolist(), strict=True))
        return [held.get(index) for index in range(len(checked_B))]

    return {"scalar_quadratic": Later(spread, scalars)}
