"""The utility path of every question of a batch for one update, whichever readout and utility it has."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from loopscope.measure.layout import Layout
from loopscope.measure.utility import correct_rows
from loopscope.models.protocol import LoopedModel
from loopscope.readout.affine import AffinePath, affine_path_from_states
from loopscope.readout.nonlinear import NonlinearPath, nonlinear_path_from_states
from loopscope.readout.options import option_path
from loopscope.readout.utility_path import UtilityPath

SequencePath: TypeAlias = AffinePath | NonlinearPath


def sequence_path(
    model: LoopedModel, h_RSD: Tensor, h_plus_RSD: Tensor, layout: Layout, dtype: torch.dtype
) -> SequencePath:
    """φ of every sequence's mean log probability, its readout in `dtype`."""
    if model.head is None:
        return nonlinear_path_from_states(
            lambda state, positions: model.readout(state, positions, dtype),
            h_RSD,
            h_plus_RSD,
            layout.targets_N,
            layout.positions_N2,
            examples=layout.sequence_N,
            dtype=dtype,
        )
    row, place = layout.positions_N2.unbind(1)
    return affine_path_from_states(
        h_RSD[row, place],
        h_plus_RSD[row, place],
        model.head.weight_VD,
        model.head.bias_V,
        layout.targets_N,
        examples=layout.sequence_N,
        dtype=dtype,
    )


def question_path(path: SequencePath, layout: Layout) -> UtilityPath:
    """φ of every question: the sequence's own for a reference solution, joint over options otherwise."""
    if not layout.is_options:
        return path
    return option_path(path, layout.question_R, correct_rows(layout))
