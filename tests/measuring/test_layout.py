"""Batches: what they hold, how they shrink, and that the numbers do not depend on them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loopscope.measuring.batching import Question, groups_within, padded_tokens, plan_batches, shrunk
from loopscope.measuring.config import BatchPolicy
from loopscope.store import StoredRun
from loopscope.tasks.encoding import Example, Row, Sequence


def question(row: int, *lengths: int) -> Question:
    sequences = tuple(Sequence(tuple(range(n)), (n - 2,), (n - 1,)) for n in lengths)
    answer = 0 if len(lengths) > 1 else None
    return Question(row, Example(f"q{row}", row, "", sequences, answer), Row(f"q{row}", row, "", ("x",) * len(lengths)))


QUESTIONS = [question(i, n) for i, n in enumerate([10, 40, 20, 30, 35, 12, 8])]


def rows(batches: list[list[Question]]) -> list[list[int]]:
    return [[q.row for q in batch] for batch in batches]


def test_batches_are_those_with_the_least_work() -> None:
    """Against every way to cut the questions, ordered by length, into batches."""
    chance = random.Random(5)
    questions = [question(row, chance.choice([200, 250, 600, 900, 1500])) for row in range(9)]
    ordered = sorted(questions, key=lambda q: (-q.group.width, q.row))

    def work(batches: Iterable[list[Question]]) -> int:
        return sum(max(padded_tokens(batch), 1024) for batch in batches)

    def cuts() -> Iterator[list[list[Question]]]:
        for chosen in itertools.product([False, True], repeat=len(ordered) - 1):
            marks = [0, *(place for place, cut in enumerate(chosen, 1) if cut), len(ordered)]
            batches = [ordered[start:stop] for start, stop in itertools.pairwise(marks)]
            if all(len(batch) == 1 or padded_tokens(batch) <= 4096 for batch in batches):
                yield batches

    found = plan_batches(questions, BatchPolicy("tokens", budget=4096))
    assert [q for batch in found for q in batch] == ordered
    assert work(found) == min(map(work, cuts()))
    assert len(found) > 2


def test_shrinking_halves_until_it_fits() -> None:
    batches = plan_batches(QUESTIONS, BatchPolicy.parse("7"))
    small = shrunk(batches, 80)
    assert sorted(row for batch in rows(small) for row in batch) == list(range(7))
    assert all(len(batch) == 1 or padded_tokens(batch) <= 80 for batch in small)


def test_numbers_do_not_depend_on_the_layout(measured: Callable[..., StoredRun]) -> None:
    runs = [
        measured("huginn", "arithmetic-mc", limit=6, batch_size=size, unit_size=unit)
        for size, unit in (("auto", 64), ("paper", 4), ("1", 2))
    ]
    first, *others = (run.records for run in runs)
    for run, other in zip(runs[1:], others, strict=True):
        assert run.manifest.batch.policy in ("paper", "questions")
        for name in ("utility_before", "gain", "slope", "quadratic", "quadratic_gain", "output_kl", "update_norm"):
            np.testing.assert_allclose(other[name], first[name], rtol=2e-4, atol=2e-6)


@given(st.lists(st.integers(1, 9), max_size=12), st.integers(0, 20))
def test_groups_are_whole_in_order_and_within_the_budget(counts: list[int], most: int) -> None:
    groups = [list(group) for group in groups_within(counts, most)]
    assert [index for group in groups for index in group] == list(range(len(counts)))
    sizes = [sum(counts[index] for index in group) for group in groups]
    assert all(size <= most or len(group) == 1 for size, group in zip(sizes, groups, strict=True))
    # None could take the first of the next.
    assert all(size + counts[following[0]] > most for size, following in zip(sizes, groups[1:], strict=False))
