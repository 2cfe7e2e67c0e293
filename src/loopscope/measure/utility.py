"""Reference utilities of a state (Appendix "Task Utilities"): mean log probability, or joint over options.

    solution:  U = mean_j log p(y_j)
    options:   U = s_k* − log Σ_k exp s_k,   s_k = mean_j log p(y_j^(k))

The readout runs in its own dtype; log-softmax and everything after it in float64.

Shapes: N reference tokens, R sequences, B questions, S positions, D hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.measure.layout import Layout
from loopscope.models.protocol import LoopedModel
from loopscope.readout.affine.reference import log_probability_at_start
from loopscope.readout.affine.sources import full_precision_products

LOGITS = 1 << 25
"""Logits that exist at a time: a quarter of a gigabyte in float64."""


@dataclass(frozen=True)
class Reading:
    """What a state says about the references of a batch, float64.

    Attributes:
        log_p_N: log probability of each reference token.
        sums_R: summed log probability of each sequence.
        scores_R: mean log probability of each sequence.
        utility_B: U of each question.
    """

    log_p_N: Tensor
    sums_R: Tensor
    scores_R: Tensor
    utility_B: Tensor

    @classmethod
    def of(cls, log_p_N: Tensor, layout: Layout) -> Reading:
        """From the log probabilities, wherever they were read."""
        sums_R = layout.sequence_sum(log_p_N)
        scores_R = sums_R / layout.tokens_R
        return cls(log_p_N, sums_R, scores_R, question_utility(scores_R, layout))


def read(model: LoopedModel, state_RSD: Tensor, layout: Layout, dtype: torch.dtype) -> Reading:
    """Log probabilities and U of every question at a state, through any readout."""
    return Reading.of(log_probabilities(model, state_RSD, layout, dtype), layout)


def question_utility(scores_R: Tensor, layout: Layout) -> Tensor:
    """U from the sequences' scores, [R] → [B]."""
    if layout.options is None:
        return scores_R
    return log_probability_at_start(layout.options.gathered(scores_R, -torch.inf), layout.options.target)


def log_probabilities(model: LoopedModel, state_RSD: Tensor, layout: Layout, dtype: torch.dtype) -> Tensor:
    """Log p of every reference token, float64 [N]."""
    found = []
    for piece in pieces(model, layout):
        z_nV = logits(model, state_RSD, layout, piece, dtype)
        target_n = z_nV.gather(1, layout.targets_N[piece.tokens, None])[:, 0]
        found.append(target_n - torch.logsumexp(z_nV, dim=1))
    return torch.cat(found)


class Piece(NamedTuple):
    """Whole sequences of a batch and their reference tokens."""

    rows: slice
    tokens: slice


def logits(model: LoopedModel, state_RSD: Tensor, layout: Layout, piece: Piece, dtype: torch.dtype) -> Tensor:
    """Logits at the prediction positions of a piece, read out in `dtype` without TF32, as float64 [n, V]."""
    with full_precision_products():
        return model.readout(state_RSD[piece.rows], local_positions(layout, piece), dtype).double()


def local_positions(layout: Layout, piece: Piece) -> Tensor:
    """The prediction positions of a piece, rows counted from its first."""
    row, place = layout.positions_N2[piece.tokens].unbind(1)
    return torch.stack([row - piece.rows.start, place], 1)


def pieces(model: LoopedModel, layout: Layout) -> Iterator[Piece]:
    """Whole sequences with their reference tokens, so many at a time that their logits fit."""
    most = max(1, LOGITS // model.vocabulary_size)
    first_row = first_token = tokens = 0
    for row, count in enumerate(layout.counts):
        if tokens and tokens + count > most:
            yield Piece(slice(first_row, row), slice(first_token, first_token + tokens))
            first_row, first_token, tokens = row, first_token + tokens, 0
        tokens += count
    yield Piece(slice(first_row, len(layout.counts)), slice(first_token, first_token + tokens))
