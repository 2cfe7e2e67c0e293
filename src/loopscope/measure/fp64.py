"""The FP64 path analysis of one update (level full; Appendix "FP64 Path Analysis").

The recurrent endpoints are kept; readout and derivatives are FP64. An affine readout of a reference solution gives a
concave path with derivative bounds that hold between samples (`fp64_concave`). Every other path is searched adaptively,
without such bounds (`fp64_search`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from loopscope.measure.affine import block_size, predicting
from loopscope.measure.columns import Columns, array, stacked
from loopscope.measure.fp64_concave import concave_columns
from loopscope.measure.fp64_search import searched_columns
from loopscope.measure.layout import Layout
from loopscope.measure.paths import joint_path, nonlinear_sequences
from loopscope.measure.utility import LOGITS
from loopscope.models.protocol import AffineHead, LoopedModel
from loopscope.path import CONTRACTION
from loopscope.path.grids import PATH_NODES
from loopscope.readout.affine.make import affine_path
from loopscope.readout.affine.path import AffinePath
from loopscope.readout.path import UtilityPath


@dataclass(frozen=True)
class Analysis:
    """Columns of `questions` and of `paths`, one row a question."""

    questions: Columns
    nodes: Columns


def analyse(model: LoopedModel, h_RSD: Tensor, h_plus_RSD: Tensor, layout: Layout) -> Analysis:
    """The FP64 columns of every question of a batch."""
    parts = [
        _group(model, h_RSD[some.rows], h_plus_RSD[some.rows], some.layout)
        for some in map(layout.some, _groups(model, layout))
    ]
    return Analysis(stacked([part.questions for part in parts]), stacked([part.nodes for part in parts]))


def _groups(model: LoopedModel, layout: Layout) -> Iterator[list[int]]:
    """Whole questions, so many at a time that their FP64 logits can be kept."""
    most = max(1, LOGITS // model.vocabulary_size)
    group: list[int] = []
    tokens = 0
    for index, question in enumerate(layout.questions):
        count = question.example.prediction_count
        if group and tokens + count > most:
            yield group
            group, tokens = [], 0
        group.append(index)
        tokens += count
    yield group


def _group(model: LoopedModel, h_RSD: Tensor, h_plus_RSD: Tensor, layout: Layout) -> Analysis:
    sequences: UtilityPath
    if model.head is not None:
        sequences = _stored(model.head, h_RSD, h_plus_RSD, layout)
    else:
        sequences = nonlinear_sequences(model, h_RSD, h_plus_RSD, layout, torch.float64)
    path = joint_path(sequences, layout)
    found, nodes = concave_columns(path) if isinstance(path, AffinePath) else searched_columns(path)
    found["state_gap"] = _state_gap(h_RSD, h_plus_RSD, layout)
    quarter = int(CONTRACTION * (PATH_NODES - 1))
    found["quarter_gain"] = nodes["gain"][:, quarter]
    alpha = np.broadcast_to(np.linspace(0.0, 1.0, PATH_NODES), nodes["gain"].shape)
    return Analysis({f"fp64_{name}": values for name, values in found.items()}, {"alpha": alpha, **nodes})


def _state_gap(h_RSD: Tensor, h_plus_RSD: Tensor, layout: Layout) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The largest entry of |H + D − H⁺| at a question's valid positions, in the arithmetic of the path."""
    h, h_plus = h_RSD.double(), h_plus_RSD.double()
    gap_RS = (h + (h_plus - h) - h_plus).abs().amax(2) * layout.batch.attention_mask
    found = np.zeros(len(layout.questions))
    np.maximum.at(found, array(layout.question_R), array(gap_RS.amax(1)))
    return found


def _stored(head: AffineHead, h_RSD: Tensor, h_plus_RSD: Tensor, layout: Layout) -> AffinePath:
    """The affine path with its logits kept: roots ask for them again and again."""
    h_ND = predicting(h_RSD, layout).double()
    weight_DV = head.weight_VD.double().T
    z0_NV = h_ND @ weight_DV
    if head.bias_V is not None:
        z0_NV += head.bias_V.double()
    v_NV = (predicting(h_plus_RSD, layout).double() - h_ND) @ weight_DV
    size = block_size(head)
    return affine_path(
        z0_NV,
        v_NV,
        layout.targets_N,
        examples=layout.sequence_N,
        block_tokens=size.tokens,
        block_vocabulary=size.vocabulary,
    )
