from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopscope.errors import LoopscopeError
from loopscope.tasks.encoding import Example, Sequence, fit_lengths


def sequence(context: int, scored: int) -> Sequence:
    tokens = tuple(range(100, 100 + context + scored))
    return Sequence(tokens, tuple(range(context - 1, context + scored - 1)), tokens[context:])


def example(*sequences: Sequence, row: int = 0) -> Example:
    return Example(f"test-{row}", row, "", sequences, 0 if len(sequences) > 1 else None)


def test_what_does_not_fit_is_counted_and_named() -> None:
    examples = [example(sequence(3, 2), row=0), example(sequence(6, 2), row=1)]
    with pytest.raises(LoopscopeError, match=r"^1 of 2 questions are longer than 7 tokens: test-1 \(8 tokens\); skip"):
        fit_lengths(examples, 7, "error")
    assert fit_lengths(examples, 7, "skip") == [examples[0], None]
    with pytest.raises(LoopscopeError, match=r"test-4 \(10 tokens\) and 3 more"):
        fit_lengths([example(sequence(9, 1), row=row) for row in range(8)], 4, "skip")
    assert fit_lengths(examples, 8, "error") == examples


def test_skipping_leaves_a_choice_out_whole() -> None:
    assert fit_lengths([example(sequence(2, 1), sequence(2, 9)), example(sequence(1, 1))], 8, "skip")[0] is None


@given(st.integers(1, 30), st.integers(1, 10), st.integers(0, 30))
def test_cutting_keeps_what_is_scored_and_one_token_before_it(context: int, scored: int, spare: int) -> None:
    allowed = scored + 1 + spare
    (cut,) = fit_lengths([example(sequence(context, scored))], allowed, "truncate-left")
    assert cut is not None
    kept = cut.sequences[0]
    assert kept.targets == sequence(context, scored).targets
    assert len(kept.token_ids) == min(context + scored, allowed)
    assert kept.token_ids == sequence(context, scored).token_ids[-len(kept.token_ids) :]


def test_an_answer_that_does_not_fit_alone_cannot_be_cut() -> None:
    with pytest.raises(LoopscopeError, match="even without a context; use the policy skip"):
        fit_lengths([example(sequence(4, 8))], 8, "truncate-left")


def test_only_the_long_sequences_of_a_choice_are_cut() -> None:
    (cut,) = fit_lengths([example(sequence(5, 1), sequence(5, 3))], 6, "truncate-left")
    assert cut is not None
    assert [len(kept.token_ids) for kept in cut.sequences] == [6, 6]
    assert cut.sequences[0] == sequence(5, 1)
