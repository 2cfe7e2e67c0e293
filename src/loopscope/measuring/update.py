"""A batch on its device: where its reference tokens are, one update H → H⁺ as plain data, what its states alone say.

A `Layout` is about sequences in rows of their own; what a model ran may have been packed (`models.packing`).

State diagnostics (Appendix "State and Output Diagnostics") are Frobenius norms over all valid positions; the states of
all options of a question are concatenated.

    ‖D‖,   ‖D‖ / (‖H‖ + 1e-12),   1 − ⟨H, H⁺⟩ / (‖H‖ ‖H⁺‖)

Interventions (Appendix "Immediate Quadratic Scale Selection"): H + αD is interpolated in FP32 and rounded to BF16, so
that its gain is that of a state which the model's arithmetic can hold, not of the ideal interpolant.

Shapes: N reference tokens, R sequences, B questions, S positions, D hidden width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from loopscope.measuring.batching import Question, groups_within
from loopscope.measuring.host_copies import upload
from loopscope.models.batch import Batch
from loopscope.models.protocol import Context
from loopscope.path import scale_case
from loopscope.readout.options import OptionGroups

_INDICES = ("positions_N2", "targets_N", "sequence_N", "tokens_R", "question_R", "sequences_B")


@dataclass(frozen=True)
class Layout:
    """Index tensors of one batch, on the model's device; tokens and sequences stand in order.

    Everything is worked out on the host and sent to the device once, so that nothing here waits for it.

    Attributes:
        questions: the questions of the batch, in order.
        batch: their sequences, one to a row.
        positions_N2: (row, position) whose logits predict each reference token.
        targets_N: those tokens.
        sequence_N: the sequence that each belongs to.
        tokens_R: reference tokens of each sequence.
        question_R: the question that each sequence belongs to.
        sequences_B: sequences of each question.
        options: the sequences of each question and the right one among them; None for reference solutions.
        counts: reference tokens of each sequence, on the host.
        context: what the model made of these sequences, for a readout that asks for it; else None.
    """

    questions: tuple[Question, ...]
    batch: Batch
    positions_N2: Tensor
    targets_N: Tensor
    sequence_N: Tensor
    tokens_R: Tensor
    question_R: Tensor
    sequences_B: Tensor
    options: OptionGroups | None
    counts: tuple[int, ...]
    context: Context | None = None

    @classmethod
    def of(cls, questions: Sequence[Question], batch: Batch, device: torch.device) -> Layout:
        """The layout of `batch`, which holds the sequences of `questions` in order."""
        sequences = [sequence for q in questions for sequence in q.example.sequences]
        counts = [len(s.positions) for s in sequences]
        rows = np.repeat(np.arange(len(sequences)), counts)
        places = np.concatenate([np.asarray(s.positions) for s in sequences])
        targets = np.concatenate([np.asarray(s.targets) for s in sequences])
        shares = [len(q.example.sequences) for q in questions]
        owners = np.repeat(np.arange(len(questions)), shares)
        answers = [q.example.answer for q in questions]
        indices = [np.stack([rows, places], axis=1), targets, rows, counts, owners, shares]
        is_options = answers[0] is not None
        if is_options:
            first = np.cumsum(shares) - shares
            member = first[:, None] + np.minimum(np.arange(max(shares)), np.asarray(shares)[:, None] - 1)
            present = np.arange(max(shares)) < np.asarray(shares)[:, None]
            indices += [member, present, answers]
        tensors = upload(indices, device)
        options = OptionGroups(tensors[4], tensors[6], tensors[7].bool(), tensors[8]) if is_options else None
        named: dict[str, Any] = dict(zip(_INDICES, tensors, strict=False))
        return cls(tuple(questions), batch.to(device), **named, options=options, counts=tuple(counts))

    def context_of(self, rows: slice) -> Context | None:
        """The context of some of its rows, where there is one."""
        return None if self.context is None else self.context.rows(rows)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sequence, on the host."""
        return [len(sequence.token_ids) for question in self.questions for sequence in question.example.sequences]

    def sequence_sum(self, values_N: Tensor) -> Tensor:
        """Sum over the reference tokens of every sequence: [N, ...] → [R, ...]."""
        return _ordered_sum(values_N, self.tokens_R)

    def sequence_mean(self, values_N: Tensor) -> Tensor:
        """Mean over the reference tokens of every sequence: [N, ...] → [R, ...]."""
        return self.sequence_sum(values_N) / _beside(self.tokens_R, values_N)

    def question_sum(self, values_R: Tensor) -> Tensor:
        """Sum over the sequences of every question: [R, ...] → [B, ...]."""
        return _ordered_sum(values_R, self.sequences_B)

    def question_mean(self, values_R: Tensor) -> Tensor:
        """Mean over the sequences of every question: [R, ...] → [B, ...]."""
        return self.question_sum(values_R) / _beside(self.sequences_B, values_R)

    def question_largest(self, values_R: Tensor) -> Tensor:
        """The largest over the sequences of every question: [R] → [B]."""
        found_B = values_R.new_full((len(self.questions),), -torch.inf)
        return found_B.scatter_reduce(0, self.question_R, values_R, "amax")


def _ordered_sum(values: Tensor, lengths: Tensor) -> Tensor:
    """Sums of consecutive segments, each added up in order: the same bits every time, on every device."""
    flat = values.reshape(values.shape[0], -1).contiguous()
    # Not asked to check the lengths, which are right by construction: it would wait for the device.
    summed = torch.segment_reduce(flat, "sum", lengths=lengths, axis=0, unsafe=True)
    return summed.reshape(-1, *values.shape[1:])


def _beside(counts: Tensor, values: Tensor) -> Tensor:
    return counts.to(values.dtype).reshape(-1, *[1] * (values.dim() - 1))


@dataclass(frozen=True)
class Update:
    """The states of a batch before and after an update, and where its reference tokens are."""

    layout: Layout
    before_RSD: Tensor
    after_RSD: Tensor

    def predicting(self) -> tuple[Tensor, Tensor]:
        """H and H⁺ where the reference tokens are predicted, [N, D] each."""
        return predicting(self.before_RSD, self.layout), predicting(self.after_RSD, self.layout)

    def groups(self, most: int, chosen: Sequence[int] | None = None) -> Iterator[Update]:
        """The chosen questions (all of them if left out), at most `most` reference tokens or one question at a time."""
        chosen = range(len(self.layout.questions)) if chosen is None else chosen
        counts = [self.layout.questions[index].example.prediction_count for index in chosen]
        for group in groups_within(counts, most):
            yield self.some([chosen[place] for place in group])

    def some(self, chosen: Sequence[int]) -> Update:
        """The same update of the questions `chosen` alone, in rows as wide as these."""
        layout, batch = self.layout, self.layout.batch
        shares = [len(question.example.sequences) for question in layout.questions]
        first = np.cumsum(shares) - shares
        (rows,) = upload([np.concatenate([first[i] + np.arange(shares[i]) for i in chosen])], self.before_RSD.device)
        ids, mask = batch.input_ids[rows], batch.attention_mask[rows]
        some = Batch(ids, mask, padding=batch.padding, highest_id=batch.highest_id)
        context = None if layout.context is None else layout.context.rows(rows)
        of_some = Layout.of([layout.questions[i] for i in chosen], some, ids.device)
        return Update(dataclasses.replace(of_some, context=context), self.before_RSD[rows], self.after_RSD[rows])


def predicting(state_RSD: Tensor, layout: Layout) -> Tensor:
    """The states whose logits predict the reference tokens, [N, D]."""
    row, place = layout.positions_N2.unbind(1)
    return state_RSD[row, place]


def predicted_scale(slope: Tensor, quadratic: Tensor) -> Tensor:
    """α̂ = min argmax over [0, 1] of Aα + Qα² (Eq. predicted-step), by the same rule (`scale_case`), to the bit.

    What is not finite is not refused here; it is where the columns are put together on the host.

    >>> predicted_scale(torch.tensor([0.5, -0.5, 4.0, 1.0]), torch.tensor([-1.0, -1.0, -1.0, 0.0])).tolist()
    [0.25, 0.0, 1.0, 1.0]
    """
    case = scale_case(slope, quadratic)
    half = 0.5 * (slope / torch.where(case.interior, -quadratic, 1.0))
    return torch.where(case.at_one, 1.0, torch.where(case.interior, half, 0.0))


class StateChange(NamedTuple):
    """One number per question, float64 [B]."""

    update_norm: Tensor
    relative_change: Tensor
    cosine_change: Tensor


def state_change(update: Update) -> StateChange:
    """How far the update moved the states of each question."""
    layout, norms_3RS = update.layout, squared_norms(update.before_RSD, update.after_RSD)
    at_positions = torch.where(layout.batch.attention_mask, norms_3RS, 0.0)
    norm_h, norm_plus, norm_d = layout.question_sum(at_positions.sum(-1).T).sqrt().unbind(1)
    both = norm_h * norm_plus
    # 1 − cos loses its digits for small angles; with unit vectors u and u⁺ it is ‖u − u⁺‖²/2, which does not:
    # ‖D‖² = (‖H‖ − ‖H⁺‖)² + 2 ‖H‖ ‖H⁺‖ (1 − cos).
    angular = (norm_d**2 - (norm_h - norm_plus) ** 2).clamp(min=0.0) / (2.0 * both)
    cosine = torch.where(both > 0, angular, torch.zeros_like(both))
    return StateChange(norm_d, norm_d / (norm_h + 1e-12), cosine)


def squared_norms(h_RSD: Tensor, h_plus_RSD: Tensor) -> Tensor:
    """‖H‖², ‖H⁺‖² and ‖D‖² of every position, float64 [3, R, S]; D and the squares are FP32, of float64 states FP64."""
    found = []
    # A few rows at a time: what is made in between stays in the cache.
    for h, h_plus in zip(torch.split(h_RSD, 8), torch.split(h_plus_RSD, 8), strict=True):
        a, b = (h, h_plus) if h.dtype == torch.float64 else (h.float(), h_plus.float())
        found.append(torch.stack([(x * x).sum(-1, dtype=torch.float64) for x in (a, b, b - a)]))
    return torch.cat(found, 1)


def interpolated(h: Tensor, h_plus: Tensor, scale: Tensor) -> Tensor:
    """H + αD in FP32, rounded to BF16 and returned in the states' dtype; `scale` broadcasts against the states."""
    start = h.float()
    mixed = start + scale.float() * (h_plus.float() - start)
    return mixed.to(torch.bfloat16).to(h.dtype)
