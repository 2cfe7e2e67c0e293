"""Reference utilities of a state (Appendix "Task Utilities"): mean log probability, or joint over options.

    solution:  U = mean_j log p(y_j)
    options:   U = s_k* − log Σ_k exp s_k,   s_k = mean_j log p(y_j^(k))

The readout runs in its own dtype; log-softmax and everything after it in float64.

Shapes: N reference tokens, R sequences, B questions, S positions, D hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from loopscope.measure.layout import Layout
from loopscope.models.protocol import LoopedModel

_LOGITS = 1 << 25
"""Logits that exist at a time: a quarter of a gigabyte in float64."""


@dataclass(frozen=True)
class Utilities:
    """What a state says about the references of a batch, float64."""

    utility_B: Tensor
    scores_R: Tensor
    """Mean log probability of each sequence."""
    sums_R: Tensor
    """Summed log probability of each sequence."""


def utilities(model: LoopedModel, state_RSD: Tensor, layout: Layout, dtype: torch.dtype) -> Utilities:
    """U of every question at a state."""
    log_p_N = log_probabilities(model, state_RSD, layout, dtype)
    sums_R = log_p_N.new_zeros(len(layout.question_R)).index_add_(0, layout.sequence_N, log_p_N)
    scores_R = layout.sequence_mean(log_p_N)
    return Utilities(question_utility(scores_R, layout), scores_R, sums_R)


def question_utility(scores_R: Tensor, layout: Layout) -> Tensor:
    """U from the sequences' scores, [R] → [B]."""
    if layout.correct_B is None:
        return scores_R
    questions = len(layout.questions)
    top_B = scores_R.new_full((questions,), -torch.inf).scatter_reduce_(0, layout.question_R, scores_R, "amax")
    mass_B = layout.question_sum(torch.exp(scores_R - top_B[layout.question_R]))
    return scores_R[correct_rows(layout)] - top_B - torch.log(mass_B)


def correct_rows(layout: Layout) -> Tensor:
    """The sequence of each question's right option."""
    assert layout.correct_B is not None
    counts = torch.bincount(layout.question_R, minlength=len(layout.questions))
    return counts.cumsum(0) - counts + layout.correct_B


def log_probabilities(model: LoopedModel, state_RSD: Tensor, layout: Layout, dtype: torch.dtype) -> Tensor:
    """Log p of every reference token, float64 [N]."""
    found = []
    for rows, tokens in pieces(model, layout):
        positions_n2 = layout.positions_N2[tokens] - torch.tensor([rows.start, 0], device=layout.positions_N2.device)
        z_nV = model.readout(state_RSD[rows], positions_n2, dtype).double()
        target_n = z_nV.gather(1, layout.targets_N[tokens, None])[:, 0]
        found.append(target_n - torch.logsumexp(z_nV, dim=1))
    return torch.cat(found)


def pieces(model: LoopedModel, layout: Layout) -> Iterator[tuple[slice, slice]]:
    """Whole sequences with their reference tokens, so many at a time that their logits fit."""
    counts = torch.bincount(layout.sequence_N, minlength=len(layout.question_R)).tolist()
    most = max(1, _LOGITS // model.vocabulary_size)
    first_row = first_token = tokens = 0
    for row, count in enumerate(counts):
        if tokens and tokens + count > most:
            yield slice(first_row, row), slice(first_token, first_token + tokens)
            first_row, first_token, tokens = row, first_token + tokens, 0
        tokens += count
    yield slice(first_row, len(counts)), slice(first_token, first_token + tokens)
