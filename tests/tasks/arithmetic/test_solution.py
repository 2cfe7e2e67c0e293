"""The wrong options of arithmetic-mc."""

from __future__ import annotations

from collections import Counter

import pytest

from loopscope.tasks.arithmetic.problem import LITERAL, Step, answer_of, replay, slips
from loopscope.tasks.arithmetic.task import ArithmeticChoice


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("14 + 9 = 23\nAnswer: 23", 23),
        ("Answer: 7\nAnswer: 8", 8),
        ("Answer:  412 and more", 412),
        ("Answer: -3", -3),
        ("Answer: none", None),
        ("23", None),
        ("", None),
    ],
)
def test_answer_of(text, answer):
    assert answer_of(text) == answer


# (5 + 9) * 3 - 2
STEPS = (
    Step(5, "+", 9, 14, LITERAL, LITERAL, "add", "", ""),
    Step(14, "*", 3, 42, 0, LITERAL, "mul", "", ""),
    Step(42, "-", 2, 40, 1, LITERAL, "sub", "", ""),
)


def test_replay_carries_a_change_to_the_end():
    assert replay(STEPS, 0, 13) == 13 * 3 - 2
    assert replay(STEPS, 2, 7) == 7


def test_slips_by_kind():
    wrong_operation, skipped, _, carried, stopped = slips(STEPS)
    assert 5 * 9 * 3 - 2 in wrong_operation
    assert 42 + 2 in wrong_operation
    assert 5 * 3 - 2 in skipped
    assert 14 - 2 in skipped
    assert (14 + 10) * 3 - 2 in carried
    assert 39 in carried
    assert stopped == [14, 42]


def test_slips_never_hold_the_answer():
    assert all(40 not in kind for kind in slips(STEPS))


def test_four_distinct_options_with_the_right_one_in_its_place():
    task = ArithmeticChoice()
    for index, row in enumerate(task.rows("test", 400)):
        options = [int(text) for text in row.continuations]
        assert len(set(options)) == 4
        assert min(options) > 0
        assert row.answer is not None
        assert options[row.answer] == task.problem("test", index).answer
        assert all(text == f" {option}" for text, option in zip(row.continuations, options, strict=True))


def test_right_place_is_balanced():
    answers = [row.answer for row in ArithmeticChoice().rows("test", 400)]
    assert Counter(answers) == {0: 100, 1: 100, 2: 100, 3: 100}
    assert len({tuple(answers[first : first + 4]) for first in range(0, 400, 4)}) > 15


def test_no_rank_gives_the_answer_away():
    """The right option is not mostly the largest, smallest or any other rank among the four."""
    ranks = Counter()
    for row in ArithmeticChoice().rows("test", 1000):
        options = [int(text) for text in row.continuations]
        ranks[sorted(options).index(options[row.answer])] += 1
    assert max(ranks.values()) < 450
