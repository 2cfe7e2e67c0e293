"""Questions into batches, and where in a batch the scored tokens are.

Every question is whole, and a unit's batches follow from its examples and the policy, never from what was measured
before, so that a resumed run has the batches of an undisturbed one. Only a batch that did not fit into memory changes
that: see `shrunk`. A `Layout` is about sequences in rows of their own; what a model ran may have been packed
(`models.batch`). At the end: columns that describe a question and not what a model made of it.

Shapes: N reference tokens of the batch, R sequences, B questions.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from loopscope.measuring.batch_policy import BatchPolicy
from loopscope.measuring.host_copies import Columns, upload
from loopscope.models.batch import Batch
from loopscope.models.packing import Group, Packing, pack
from loopscope.models.protocol import Context
from loopscope.readout.options import OptionGroups
from loopscope.tasks.encoding import Example, Row


class Span(NamedTuple):
    """Where a token stands in its reference or option text, in characters."""

    start: int
    end: int


@dataclass(frozen=True)
class Question:
    """An encoded example and its place in the run.

    Attributes:
        row: position of the example in this run's task, from 0.
        example: its sequences.
        text: the same as text.
        spans: for each sequence the place of each reference token in the text; None where nobody asked.
        shared: leading tokens that its options have in common and that run once; 0 where each runs its own.
    """

    row: int
    example: Example
    text: Row
    spans: tuple[tuple[Span, ...], ...] | None = None
    shared: int = 0

    @property
    def sequences(self) -> int:
        """One for a reference solution, K for K options."""
        return len(self.example.sequences)

    @property
    def positions(self) -> int:
        """Tokens of all its sequences."""
        return sum(len(sequence.token_ids) for sequence in self.example.sequences)

    @property
    def group(self) -> Group:
        """Its sequences as they go into a batch."""
        sequences = self.example.sequences
        prompts = [sequence.positions[0] + 1 for sequence in sequences]
        return Group([s.token_ids for s in sequences], self.shared, self.example.source_row, prompts)

    @property
    def width(self) -> int:
        """Tokens of its longest row in a batch."""
        return self.group.width


def plan_batches(questions: Sequence[Question], policy: BatchPolicy) -> list[list[Question]]:
    """The batches of one unit, in the order in which they run."""
    if policy.size is not None:
        return [list(questions[start : start + policy.size]) for start in range(0, len(questions), policy.size)]
    # Longest first: if memory does not suffice, that shows at once and not after an hour.
    return _least_work(sorted(questions, key=lambda q: (-q.width, q.row)), policy)


def _least_work(ordered: Sequence[Question], policy: BatchPolicy) -> list[list[Question]]:
    """Neighbours by length in batches within the budget of padded tokens, so that the batches' work is least.

    Work is the tokens that run, but a batch of less than a tenth of the budget, or of 1024, takes as long as one of
    that size: it leaves a device half idle, or its host busy starting operations. Of batches with the same work, as
    all may have that are not padded, the largest. By dynamic programming over where the last batch begins.
    """
    budget, unpadded = policy.budget, policy.padding == "none"
    assert budget is not None
    small = max(budget // 10, 1024)
    groups = [q.group for q in ordered]
    rows_of, widths, own = ([getattr(g, name) for g in groups] for name in ("rows", "width", "tokens"))
    least, begins = [0], [0]
    for stop in range(1, len(ordered) + 1):
        found, begin, rows, tokens = math.inf, stop - 1, 0, 0
        for start in range(stop - 1, -1, -1):
            rows, tokens = rows + rows_of[start], tokens + own[start]
            padded = rows * widths[start]
            if padded > budget and start < stop - 1:
                break
            work = least[start] + max(tokens if unpadded else padded, small)
            if work < found or (unpadded and work == found):
                found, begin = work, start
        least.append(int(found))
        begins.append(begin)
    batches: list[list[Question]] = []
    stop = len(ordered)
    while stop:
        batches.append(list(ordered[begins[stop] : stop]))
        stop = begins[stop]
    return batches[::-1]


def shrunk(batches: Iterable[Sequence[Question]], ceiling: int | None) -> list[list[Question]]:
    """The same batches, halved and halved again until each has at most `ceiling` padded tokens or one question."""
    fitting: list[list[Question]] = []
    for batch in batches:
        if ceiling is None or len(batch) == 1 or padded_tokens(batch) <= ceiling:
            fitting.append(list(batch))
        else:
            middle = (len(batch) + 1) // 2
            fitting += shrunk([batch[:middle], batch[middle:]], ceiling)
    return fitting


def padded_tokens(questions: Sequence[Question]) -> int:
    """Tokens of a batch, padding included."""
    return max(q.width for q in questions) * sum(q.group.rows for q in questions)


def groups_within(counts: Sequence[int], most: int) -> Iterator[range]:
    """Neighbours in groups of at most `most` tokens; what has more than that by itself is a group of its own.

    >>> list(groups_within([3, 3, 7, 1, 2], 6))
    [range(0, 2), range(2, 3), range(3, 5)]
    """
    start = tokens = 0
    for index, count in enumerate(counts):
        if tokens and tokens + count > most:
            yield range(start, index)
            start, tokens = index, 0
        tokens += count
    if start < len(counts):
        yield range(start, len(counts))


def run_tokens(questions: Sequence[Question], policy: BatchPolicy) -> int:
    """Tokens of a batch that a model runs, with padding where there is any."""
    if policy.padding == "none":
        return sum(q.group.tokens for q in questions)
    return padded_tokens(questions)


def collate(questions: Sequence[Question], policy: BatchPolicy | None = None) -> Packing:
    """The sequences of the questions, one after the other; what options share stands once.

    Padded on the right, or all in one row where the policy says so.
    """
    return pack([q.group for q in questions], unpadded=policy is not None and policy.padding == "none")


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
        layout = Layout.of([self.questions[i] for i in chosen], batch, batch.input_ids.device)
        return SomeQuestions(rows, layout if self.context is None else layout.given(self.context.rows(rows)))

    def given(self, context: Context | None) -> Layout:
        """The same with the context of its rows."""
        return dataclasses.replace(self, context=context)

    def context_of(self, rows: slice) -> Context | None:
        """The context of some of its rows, where there is one."""
        return None if self.context is None else self.context.rows(rows)

    @property
    def is_options(self) -> bool:
        """Whether utilities are joint over options."""
        return self.options is not None

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sequence, on the host."""
        return [len(sequence.token_ids) for question in self.questions for sequence in question.example.sequences]

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

    def question_largest(self, values_R: Tensor) -> Tensor:
        """The largest over the sequences of every question: [R] → [B]."""
        found_B = values_R.new_full((len(self.questions),), -torch.inf)
        return found_B.scatter_reduce(0, self.question_R, values_R, "amax")


class SomeQuestions(NamedTuple):
    """Some questions of a batch: the rows that are theirs, and their own layout."""

    rows: Tensor
    layout: Layout


def _ordered_sum(values: Tensor, lengths: Tensor) -> Tensor:
    """Sums of consecutive segments, each added up in order: the same bits every time, on every device."""
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
    }


def example_columns(questions: Sequence[Question]) -> Columns:
    """The table of texts: what was asked, so that a run can be read without its data set."""
    rows = []
    for question in questions:
        example, text = question.example, question.text
        is_options = example.answer is not None
        metadata: dict[str, object] = {key: value for key, value in example.metadata.items() if key != "difficulty"}
        if text.ids is not None:
            metadata |= {"prompt_ids": text.ids.prompt, "continuation_ids": text.ids.continuations}
        rows.append(
            {
                "row": question.row,
                "example_id": example.id,
                "source_row": example.source_row,
                "prompt": text.context,
                "reference": None if is_options else text.texts[0],
                "options": text.texts if is_options else None,
                "correct_option": example.answer,
                "n_tokens": example.prediction_count,
                "difficulty": _difficulty(question),
                "metadata": json.dumps(metadata, sort_keys=True) if metadata else None,
            }
        )
    return {name: [row[name] for row in rows] for name in rows[0]}


def _difficulty(question: Question) -> str | None:
    found = question.example.metadata.get("difficulty")
    return None if found is None else str(found)
