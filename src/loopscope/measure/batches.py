"""Questions into batches: every question whole, the layout a function of the unit alone.

A unit's batches follow from its examples and the policy, never from what was measured before, so that a resumed run
has the batches of an undisturbed one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loopscope.measure.settings import BatchPolicy
from loopscope.models.batch import Batch
from loopscope.tasks.example import Example, Row


@dataclass(frozen=True)
class Question:
    """An encoded example and its place in the run."""

    row: int
    """Position of the example in this run's task, from 0."""
    example: Example
    text: Row
    """The same as text."""

    @property
    def sequences(self) -> int:
        """One for a reference solution, K for K options."""
        return len(self.example.sequences)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(len(sequence.token_ids) for sequence in self.example.sequences)


def plan_batches(questions: Sequence[Question], policy: BatchPolicy) -> list[list[Question]]:
    """The batches of one unit, in the order in which they run."""
    if policy.size is not None:
        return [list(questions[start : start + policy.size]) for start in range(0, len(questions), policy.size)]
    assert policy.budget is not None
    batches: list[list[Question]] = []
    # Longest first: if memory does not suffice, that shows at once and not after an hour.
    for question in sorted(questions, key=lambda q: (-q.longest, q.row)):
        if batches and _padded_tokens([*batches[-1], question]) <= policy.budget:
            batches[-1].append(question)
        else:
            batches.append([question])
    return batches


def halves(questions: Sequence[Question]) -> tuple[list[Question], list[Question]]:
    """Two smaller batches in place of one that did not fit."""
    middle = (len(questions) + 1) // 2
    return list(questions[:middle]), list(questions[middle:])


def _padded_tokens(questions: Sequence[Question]) -> int:
    return max(q.longest for q in questions) * sum(q.sequences for q in questions)


def collate(questions: Sequence[Question]) -> Batch:
    """The sequences of the questions, one after the other, padded on the right."""
    rows = [sequence.token_ids for q in questions for sequence in q.example.sequences]
    sources = [q.example.source_row for q in questions for _ in q.example.sequences]
    return Batch.from_rows(rows, source_rows=sources)
