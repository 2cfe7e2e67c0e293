"""φ of one update on the grid through a nonlinear readout: interpolated where that is as good as evaluating it.

Derivatives are taken at the five scales of the curvature path, and `readout.general.interpolation` makes a polynomial
of every reference token from them. Its error is measured on every question; what it may be is the rounding of the
readout itself. A question above that is evaluated at every scale of the grid, and at its own. φ(1) is the difference of
the readings of H⁺ and H in any case. Two columns say of each question what was measured and done.

Shapes: N reference tokens, R sequences, B questions, K scales.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from loopscope.measuring.transfer import Columns
from loopscope.path import GRID
from loopscope.readout.composed import InterpolatedPath, JoinedPath, RememberedPath
from loopscope.readout.general.interpolation import NODES, interpolate
from loopscope.readout.path import UtilityPath

if TYPE_CHECKING:
    from loopscope.measuring.reading import Reading
    from loopscope.measuring.update import Update

ROUNDINGS = 8.0
"""What interpolation may be off by: so many roundings of 1 + |score|, in the readout's arithmetic."""
VALUES = 8.0
"""How many times that the evaluated values may lie apart from the polynomial: they are rounded differences."""


class InterpolatedGrid(NamedTuple):
    """What is known of an update's grid.

    Attributes:
        tokens: every reference token, with the grid and the derivatives at `NODES` known.
        sequences: every sequence, for scales of their own.
        columns: of `questions`.
    """

    tokens: RememberedPath
    sequences: UtilityPath
    columns: Columns


def interpolated_grid(update: Update, sequences: JoinedPath, before: Reading, after: Reading) -> InterpolatedGrid:
    """From the paths of the update's sequences and the readings of its two ends; waits for the device once."""
    layout, readout = update.layout, update.readout
    stack_3NK = sequences.per_token().with_utility(NODES, 2)
    found = interpolate(stack_3NK)
    truncation_R, residual_R = layout.sequence_mean(found.truncation_N), layout.sequence_mean(found.residual_N)
    allowed_R = ROUNDINGS * torch.finfo(readout.dtype).eps * (1.0 + before.scores_R.abs())
    # Both are at least the polynomial's error: one without the rounding of values, one without the derivatives'.
    holds_R = (torch.minimum(truncation_R, residual_R) <= allowed_R) & (residual_R <= VALUES * allowed_R)
    evaluated_B = layout.question_largest((~holds_R).double()) > 0.0
    chosen = evaluated_B.nonzero()[:, 0].tolist()

    grid_NK = found.polynomials.at(GRID)
    of_tokens: tuple[Tensor, UtilityPath] | None = None
    of_sequences: tuple[Tensor, UtilityPath] | None = None
    if chosen:
        again = readout.sequences(update.some(chosen), readout.dtype)
        member_R = evaluated_B[layout.question_R]
        of_tokens, of_sequences = (member_R[layout.sequence_N], again.per_token()), (member_R, again)
        grid_NK[of_tokens[0], 1:-1] = of_tokens[1].at_scales(list(GRID[1:-1]), 0)[0]
    grid_NK[:, -1] = after.log_p_N - before.log_p_N

    own = found.polynomials.at_own
    tokens = RememberedPath(InterpolatedPath(sequences.per_token(), own, of_tokens), before.log_p_N)
    at_nodes = grid_NK[:, [GRID.index(node) for node in NODES]]
    tokens.know(NODES, torch.cat([at_nodes.unsqueeze(0), stack_3NK[1:]]))
    tokens.know(GRID, grid_NK.unsqueeze(0))

    def of_each_sequence(scales_R: Tensor) -> Tensor:
        return layout.sequence_mean(own(scales_R[layout.sequence_N]))

    columns: Columns = {
        "grid_evaluated": evaluated_B,
        "interpolation_error": layout.question_largest(torch.minimum(truncation_R, residual_R)),
    }
    return InterpolatedGrid(tokens, InterpolatedPath(sequences, of_each_sequence, of_sequences), columns)
