"""Where in a batch the scored tokens are, and which question they belong to.

Everything here is about sequences in rows of their own; what a model ran may have been packed (`models.packing`).

Shapes: N reference tokens of the batch, R sequences, B questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loopscope.measure.batches import Question
from loopscope.models.batch import Batch


@dataclass(frozen=True)
class Layout:
    """Index tensors of one batch, on the model's device; tokens and sequences stand in order.

    Attributes:
        questions: the questions of the batch, in order.
        batch: their sequences, one to a row.
        positions_N2: (row, position) whose logits predict each reference token.
        targets_N: those tokens.
        sequence_N: the sequence that each belongs to.
        tokens_R: reference tokens of each sequence.
        question_R: the question that each sequence belongs to.
        sequences_B: sequences of each question.
        correct_B: index of the right sequence among a question's own; None for reference solutions.
    """

    questions: tuple[Question, ...]
    batch: Batch
    positions_N2: Tensor
    targets_N: Tensor
    sequence_N: Tensor
    tokens_R: Tensor
    question_R: Tensor
    sequences_B: Tensor
    correct_B: Tensor | None

    @classmethod
    def of(cls, questions: Sequence[Question], batch: Batch, device: torch.device) -> Layout:
        """The layout of `batch`, which holds the sequences of `questions` in order."""
        sequences = [sequence for q in questions for sequence in q.example.sequences]
        counts = [len(s.positions) for s in sequences]
        rows = np.repeat(np.arange(len(sequences)), counts)
        places = np.concatenate([np.asarray(s.positions) for s in sequences])
        targets = np.concatenate([np.asarray(s.targets) for s in sequences])
        shares = [q.sequences for q in questions]
        answers = [q.example.answer for q in questions]
        return cls(
            tuple(questions),
            batch.to(device),
            _on(np.stack([rows, places], axis=1), device),
            _on(targets, device),
            _on(rows, device),
            _on(counts, device),
            _on(np.repeat(np.arange(len(questions)), shares), device),
            _on(shares, device),
            None if answers[0] is None else _on(answers, device),
        )

    @property
    def is_options(self) -> bool:
        """Whether utilities are joint over options."""
        return self.correct_B is not None

    @property
    def width(self) -> int:
        """Padded tokens of a row of the batch that the model ran."""
        return max(question.width for question in self.questions)

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


def _ordered_sum(values: Tensor, lengths: Tensor) -> Tensor:
    """Sums of consecutive stretches, each added up in order: the same bits every time, on every device."""
    flat = values.reshape(values.shape[0], -1).contiguous()
    summed = torch.segment_reduce(flat, "sum", lengths=lengths, axis=0)
    return summed.reshape(-1, *values.shape[1:])


def _beside(counts: Tensor, values: Tensor) -> Tensor:
    return counts.to(values.dtype).reshape(-1, *[1] * (values.dim() - 1))


def _on(numbers: Any, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(numbers, dtype=np.int64)).to(device)
