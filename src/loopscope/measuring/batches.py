"""Questions into batches: every question whole, the layout a function of the unit alone.

A unit's batches follow from its examples and the policy, never from what was measured before, so that a resumed run
has the batches of an undisturbed one. Only a batch that did not fit into memory changes that: see `shrunk`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from loopscope.measuring.settings import BatchPolicy
from loopscope.models.packing import Group, Packing, pack
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
        return Group([s.token_ids for s in self.example.sequences], self.shared, self.example.source_row)

    @property
    def width(self) -> int:
        """Tokens of its longest row in a batch."""
        return self.group.width


def plan_batches(questions: Sequence[Question], policy: BatchPolicy) -> list[list[Question]]:
    """The batches of one unit, in the order in which they run."""
    if policy.size is not None:
        return [list(questions[start : start + policy.size]) for start in range(0, len(questions), policy.size)]
    assert policy.budget is not None
    # Longest first: if memory does not suffice, that shows at once and not after an hour.
    return _least_work(sorted(questions, key=lambda q: (-q.width, q.row)), policy.budget)


def _least_work(ordered: Sequence[Question], budget: int) -> list[list[Question]]:
    """Neighbours by length in batches within the budget, so that the batches' work is least.

    Work is padded tokens, but a batch of less than a tenth of the budget, or of 1024, takes as long as one of that
    size: it leaves a device half idle, or its host busy starting operations. By dynamic programming over where the
    last batch begins.
    """
    small = max(budget // 10, 1024)
    rows_of, widths = [q.group.rows for q in ordered], [q.width for q in ordered]
    least, begins = [0], [0]
    for stop in range(1, len(ordered) + 1):
        found, begin, rows = math.inf, stop - 1, 0
        for start in range(stop - 1, -1, -1):
            rows += rows_of[start]
            tokens = rows * widths[start]
            if tokens > budget and start < stop - 1:
                break
            work = least[start] + max(tokens, small)
            if work < found:
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


def collate(questions: Sequence[Question]) -> Packing:
    """The sequences of the questions, one after the other, padded on the right; what options share stands once."""
    return pack([q.group for q in questions])
