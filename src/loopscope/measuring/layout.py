"""Where in a batch the scored tokens are, and which question they belong to.

Everything here is about sequences in rows of their own; what a model ran may have been packed (`models.packing`).

Shapes: N reference tokens of the batch, R sequences, B questions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from loopscope.measuring.batches import Question
from loopscope.measuring.columns import Columns, upload
from loopscope.models.batch import Batch
from loopscope.readout.options import OptionGroups


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

    @classmethod
    def of(cls, questions: Sequence[Question], batch: Batch, device: torch.device) -> Layout:
        """The layout of `batch`, which holds the sequences of `questions` in order."""
        sequences = [sequence for q in questions for sequence in q.example.sequences]
        counts = [len(s.positions) for s in sequences]
        rows = np.repeat(np.arange(len(sequences)), counts)
        places = np.concatenate([np.asarray(s.positions) for s in sequences])
        targets = np.concatenate([np.asarray(s.targets) for s in sequences])
        shares = [q.sequences for q in questions]
        owners = np.repeat(np.arange(len(questions)), shares)
        answers = [q.example.answer for q in questions]
        indices = [np.stack([rows, places], axis=1), targets, rows, counts, owners, shares]
        is_options = answers[0] is not None
        if is_options:
            first = np.cumsum(shares) - shares
            member = first[:, None] + np.minimum(np.arange(max(shares)), np.asarray(shares)[:, None] - 1)
            present = np.arange(max(shares)) < np.asarray(shares)[:, None]
            indices += [member, present, answers]
        positions_N2, targets_N, sequence_N, tokens_R, question_R, sequences_B, *more = upload(indices, device)
        options = OptionGroups(question_R, more[0], more[1].bool(), more[2]) if is_options else None
        return cls(
            tuple(questions),
            batch.to(device),
            positions_N2,
            targets_N,
            sequence_N,
            tokens_R,
            question_R,
            sequences_B,
            options,
            tuple(counts),
        )

    def some(self, chosen: Sequence[int]) -> SomeQuestions:
        """A layout of the questions `chosen` alone, in rows as wide as these."""
        shares = [question.sequences for question in self.questions]
        first = np.cumsum(shares) - shares
        (rows,) = upload([np.concatenate([first[i] + np.arange(shares[i]) for i in chosen])], self.targets_N.device)
        batch = Batch(
            self.batch.input_ids[rows],
            self.batch.attention_mask[rows],
            padding=self.batch.padding,
            highest_id=self.batch.highest_id,
        )
        return SomeQuestions(rows, Layout.of([self.questions[i] for i in chosen], batch, batch.input_ids.device))

    @property
    def is_options(self) -> bool:
        """Whether utilities are joint over options."""
        return self.options is not None

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


class SomeQuestions(NamedTuple):
    """Some questions of a batch: the rows that are theirs, and their own layout."""

    rows: Tensor
    layout: Layout


def _ordered_sum(values: Tensor, lengths: Tensor) -> Tensor:
    """Sums of consecutive stretches, each added up in order: the same bits every time, on every device."""
    flat = values.reshape(values.shape[0], -1).contiguous()
    # Not asked to check the lengths, which are right by construction: it would wait for the device.
    summed = torch.segment_reduce(flat, "sum", lengths=lengths, axis=0, unsafe=True)
    return summed.reshape(-1, *values.shape[1:])


def _beside(counts: Tensor, values: Tensor) -> Tensor:
    return counts.to(values.dtype).reshape(-1, *[1] * (values.dim() - 1))


def identity_columns(layout: Layout) -> Columns:
    """Which question each row of `questions` or `depths` is about."""
    return {
        "row": np.asarray([q.row for q in layout.questions]),
        "example_id": [q.example.id for q in layout.questions],
        "source_row": np.asarray([q.example.source_row for q in layout.questions]),
    }


def length_columns(layout: Layout) -> Columns:
    """Sizes of the questions, and the width of the batch that they ran in."""
    columns: Columns = {
        "n_tokens": [q.example.prediction_count for q in layout.questions],
        "n_positions": [q.positions for q in layout.questions],
        "batch_width": [layout.width] * len(layout.questions),
        "difficulty": [_difficulty(q) for q in layout.questions],
    }
    if layout.is_options:
        columns["n_options"] = [q.sequences for q in layout.questions]
        columns["correct_option"] = [q.example.answer for q in layout.questions]
    return columns


def example_columns(questions: Sequence[Question]) -> Columns:
    """The table of texts: what was asked, so that a run can be read without its data set."""
    rows = []
    for question in questions:
        example, text = question.example, question.text
        is_options = example.answer is not None
        metadata = {key: value for key, value in example.metadata.items() if key != "difficulty"}
        rows.append(
            {
                "row": question.row,
                "example_id": example.id,
                "source_row": example.source_row,
                "prompt": text.context,
                "reference": None if is_options else text.continuations[0],
                "options": list(text.continuations) if is_options else None,
                "correct_option": example.answer,
                "n_tokens": example.prediction_count,
                "n_positions": question.positions,
                "option_tokens": [len(s.positions) for s in example.sequences] if is_options else None,
                "difficulty": _difficulty(question),
                "metadata": json.dumps(metadata, sort_keys=True) if metadata else None,
            }
        )
    return {name: [row[name] for row in rows] for name in rows[0]}


def _difficulty(question: Question) -> str | None:
    found = question.example.metadata.get("difficulty")
    return None if found is None else str(found)
