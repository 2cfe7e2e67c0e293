"""The utility paths of a batch for one update: tokens, sequences and questions share every evaluation of the readout.

    token → mean over a sequence's tokens → the question itself, or log-softmax over its options

Through an affine head one survey of the reference tokens says everything that a level asks for at common scales: U(H),
φ on the grid, derivatives, and how the output distributions differ. Through any other readout φ is evaluated where it
is asked for and kept. The coarser paths are made from the tokens'.

Shapes: N reference tokens, R sequences, B questions, K scales.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.measuring.layout import Layout
from loopscope.measuring.reading import Reader, Reading, local_positions, logits, pieces, predicting, token_path
from loopscope.measuring.timing import part
from loopscope.models.base import LoopedModule
from loopscope.models.protocol import LoopedModel
from loopscope.path.grids import CURVATURE_SCALES, GRID
from loopscope.readout.affine.make import affine_path
from loopscope.readout.composed import JoinedPath, MeanPath, RememberedPath
from loopscope.readout.general.path import nonlinear_path_from_states
from loopscope.readout.options import OptionPath
from loopscope.readout.path import UtilityPath
from loopscope.store.tables import Level


@dataclass(frozen=True)
class OutputChange:
    """How the output distributions of H and H⁺ differ, averaged over each sequence's prediction positions, [R] each.

    Attributes:
        divergence_R: KL(p(0)‖p(1)).
        entropy_R: the change of entropy from H to H⁺.
    """

    divergence_R: Tensor
    entropy_R: Tensor


@dataclass(frozen=True)
class UpdatePaths:
    """φ of one update of a batch at two grains, and what was read on the way.

    Attributes:
        tokens: every reference token.
        questions: every question.
        before: the reading of H.
        outputs: how the outputs differ; None where they would cost more and nobody asks.
    """

    tokens: RememberedPath
    questions: UtilityPath
    before: Reading
    outputs: OutputChange | None

    def after(self, layout: Layout) -> Reading:
        """The reading of H⁺: that of H, and what the update gained."""
        return Reading.of(self.before.log_p_N + self.tokens.at_scales([1.0], 0)[0, :, 0], layout)


class Scales(NamedTuple):
    """What a survey is asked for: φ at `points` even scales, derivatives to the second at some of them."""

    points: int
    with_derivatives: tuple[float, ...]

    @classmethod
    def of(cls, level: Level, *, tokens: bool) -> Scales:
        """What a level stores; token rows hold the gain of a quarter step besides."""
        if level is not Level.QUICK:
            return cls(len(GRID), CURVATURE_SCALES)
        return cls(len(CURVATURE_SCALES) if tokens else 2, (0.0,))


def affine_paths(reader: Reader, h_RSD: Tensor, h_plus_RSD: Tensor, scales: Scales) -> UpdatePaths:
    """The paths from H to H⁺ through an affine head: one survey for everything but own scales."""
    layout = reader.layout
    with part("survey", h_RSD.device):
        path = token_path(reader, predicting(h_RSD, layout), predicting(h_plus_RSD, layout))
        found = path.survey(scales.points, scales.with_derivatives, 2)
    tokens = RememberedPath(path, found.initial)
    tokens.know([index / (scales.points - 1) for index in range(scales.points)], found.gains.unsqueeze(0))
    tokens.know(scales.with_derivatives, found.derivatives)
    before = Reading.of(found.initial, layout)
    differ = found.distributions
    outputs = OutputChange(layout.sequence_mean(differ.divergence), layout.sequence_mean(differ.entropy_change))
    return UpdatePaths(
        tokens,
        joint_path(MeanPath(tokens, layout.sequence_mean, layout.sequence_N, before.scores_R), layout),
        before,
        outputs,
    )


def nonlinear_paths(
    model: LoopedModel,
    h_RSD: Tensor,
    h_plus_RSD: Tensor,
    layout: Layout,
    dtype: torch.dtype,
    level: Level,
    before: Reading,
) -> UpdatePaths:
    """The paths from H to H⁺ through any readout in `dtype`; `before` is the reading of H."""
    sequences = nonlinear_sequences(model, h_RSD, h_plus_RSD, layout, dtype)
    tokens = RememberedPath(sequences.per_token(), before.log_p_N)
    mean = MeanPath(tokens, layout.sequence_mean, layout.sequence_N, before.scores_R, sequences)
    outputs = None if level is Level.QUICK else _output_change(model, h_RSD, h_plus_RSD, layout, dtype)
    return UpdatePaths(tokens, joint_path(mean, layout), before, outputs)


def joint_path(sequences: UtilityPath, layout: Layout) -> UtilityPath:
    """φ of every question: the sequence's own for a reference solution, joint over options otherwise."""
    return sequences if layout.options is None else OptionPath(sequences, layout.options)


def nonlinear_sequences(
    model: LoopedModel, h_RSD: Tensor, h_plus_RSD: Tensor, layout: Layout, dtype: torch.dtype
) -> JoinedPath:
    """φ of every sequence's mean log probability through any readout in `dtype`."""
    halves = model.body_and_head(dtype) if isinstance(model, LoopedModule) else None
    readout = halves or (lambda state, positions: model.readout(state, positions, dtype))
    return JoinedPath(
        [
            nonlinear_path_from_states(
                readout,
                h_RSD[piece.rows],
                h_plus_RSD[piece.rows],
                layout.targets_N[piece.tokens],
                local_positions(layout, piece),
                examples=layout.sequence_N[piece.tokens] - piece.rows.start,
                dtype=dtype,
            )
            for piece in pieces(model, layout)
        ]
    )


def _output_change(
    model: LoopedModel, h_RSD: Tensor, h_plus_RSD: Tensor, layout: Layout, dtype: torch.dtype
) -> OutputChange:
    parts = []
    for piece in pieces(model, layout):
        z0_nV = logits(model, h_RSD, layout, piece, dtype)
        z1_nV = logits(model, h_plus_RSD, layout, piece, dtype)
        owner_n = layout.sequence_N[piece.tokens] - piece.rows.start
        # Divergence and entropies depend on the two ends alone, so the straight line between them will do.
        parts.append(affine_path(z0_nV, z1_nV - z0_nV, layout.targets_N[piece.tokens], examples=owner_n).distributions)
    return OutputChange(
        torch.cat([part.divergence for part in parts]), torch.cat([part.entropy_change for part in parts])
    )
