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
from loopscope.readout.sources import full_precision_products

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


def read(model: LoopedModel, state_RSD: Tensor, layout: Layout, dtype: torch.dtype) -> Reading:
    """Log probabilities and U of every question at a state."""
    log_p_N = log_probabilities(model, state_RSD, layout, dtype)
    sums_R = layout.sequence_sum(log_p_N)
    scores_R = sums_R / layout.tokens_R
    return Reading(log_p_N, sums_R, scores_R, question_utility(scores_R, layout))


def question_utility(scores_R: Tensor, layout: Layout) -> Tensor:
    """U from the sequences' scores, [R] → [B]."""
    if layout.correct_B is None:
        return scores_R
    top_B = torch.segment_reduce(scores_R, "max", lengths=layout.sequences_B)
    mass_B = layout.question_sum(torch.exp(scores_R - top_B[layout.question_R]))
    return scores_R[correct_rows(layout)] - top_B - torch.log(mass_B)


def correct_rows(layout: Layout) -> Tensor:
    """The sequence of each question's right option."""
    assert layout.correct_B is not None
    return layout.sequences_B.cumsum(0) - layout.sequences_B + layout.correct_B


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
    offset = torch.tensor([piece.rows.start, 0], device=layout.positions_N2.device)
    return layout.positions_N2[piece.tokens] - offset


def pieces(model: LoopedModel, layout: Layout) -> Iterator[Piece]:
    """Whole sequences with their reference tokens, so many at a time that their logits fit."""
    counts = layout.tokens_R.tolist()
    most = max(1, LOGITS // model.vocabulary_size)
    first_row = first_token = tokens = 0
    for row, count in enumerate(counts):
        if tokens and tokens + count > most:
            yield Piece(slice(first_row, row), slice(first_token, first_token + tokens))
            first_row, first_token, tokens = row, first_token + tokens, 0
        tokens += count
    yield Piece(slice(first_row, len(counts)), slice(first_token, first_token + tokens))
