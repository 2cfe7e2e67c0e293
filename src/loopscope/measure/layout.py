"""Where in a batch the scored tokens are, and which question they belong to.

Shapes: N reference tokens of the batch, R sequences (rows of the batch), B questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from loopscope.measure.batches import Question
from loopscope.models.batch import Batch


@dataclass(frozen=True)
class Layout:
    """Index tensors of one batch, on the model's device.

    Attributes:
        questions: the questions of the batch, in order.
        batch: their sequences.
        positions_N2: (row, position) whose logits predict each reference token.
        targets_N: those tokens.
        sequence_N: the sequence that each belongs to.
        question_R: the question that each sequence belongs to.
        correct_B: index of the right sequence among a question's own; None for reference solutions.
    """

    questions: tuple[Question, ...]
    batch: Batch
    positions_N2: Tensor
    targets_N: Tensor
    sequence_N: Tensor
    question_R: Tensor
    correct_B: Tensor | None

    @classmethod
    def of(cls, questions: Sequence[Question], batch: Batch, device: torch.device) -> Layout:
        """The layout of `batch`, which holds the sequences of `questions` in order."""
        sequences = [sequence for q in questions for sequence in q.example.sequences]
        rows = np.repeat(np.arange(len(sequences)), [len(s.positions) for s in sequences])
        places = np.concatenate([np.asarray(s.positions) for s in sequences])
        targets = np.concatenate([np.asarray(s.targets) for s in sequences])
        owners = np.repeat(np.arange(len(questions)), [q.sequences for q in questions])
        answers = [q.example.answer for q in questions]
        correct = None if answers[0] is None else _on(np.asarray(answers), device)
        return cls(
            tuple(questions),
            batch.to(device),
            _on(np.stack([rows, places], axis=1), device),
            _on(targets, device),
            _on(rows, device),
            _on(owners, device),
            correct,
        )

    @property
    def is_options(self) -> bool:
        """Whether utilities are joint over options."""
        return self.correct_B is not None

    @property
    def width(self) -> int:
        """Padded tokens of a sequence."""
        return int(self.batch.input_ids.shape[1])

    def sequence_mean(self, values_N: Tensor) -> Tensor:
        """Mean over the reference tokens of every sequence, in the values' own dtype: [N, ...] → [R, ...]."""
        return _segment_mean(values_N, self.sequence_N, len(self.question_R))

    def question_mean(self, values_R: Tensor) -> Tensor:
        """Mean over the sequences of every question: [R, ...] → [B, ...]."""
        return _segment_mean(values_R, self.question_R, len(self.questions))

    def question_sum(self, values_R: Tensor) -> Tensor:
        """Sum over the sequences of every question: [R, ...] → [B, ...]."""
        total = values_R.new_zeros(len(self.questions), *values_R.shape[1:])
        return total.index_add_(0, self.question_R, values_R)


def _segment_mean(values: Tensor, owner: Tensor, owners: int) -> Tensor:
    total = values.new_zeros(owners, *values.shape[1:]).index_add_(0, owner, values)
    count = torch.bincount(owner, minlength=owners).to(values.dtype)
    return total / count.reshape(-1, *[1] * (values.dim() - 1))


def _on(array: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64)).to(device)
