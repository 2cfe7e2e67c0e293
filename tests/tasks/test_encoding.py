"""Context and continuation: where the boundary falls."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopscope.errors import LoopscopeError
from loopscope.tasks.encoding import Example, LoadedTask, Row, Sequence, encode_pair, encode_row, fit_lengths


class Words:
    """Words with the blank before them, as byte-level tokenizers split; ids are made up on the way."""

    def __init__(self):
        self.ids = {}

    def encode(self, text):
        parts, word = [], ""
        for letter in text:
            if letter == " " and word:
                parts.append(word)
                word = ""
            word += letter
        return [self.ids.setdefault(part, len(self.ids)) for part in ([*parts, word] if word else parts)]


def test_joint_moves_trailing_blanks_to_the_continuation():
    words = Words()
    given = encode_pair(words, "a b ", "c d")
    assert given == encode_pair(words, "a b", " c d")
    assert given.positions == (1, 2)
    assert given.targets == given.token_ids[2:]


def test_separate_keeps_the_halves_apart():
    words = Words()
    given = encode_pair(words, "a b", "c d", split="separate")
    assert given.token_ids == tuple(words.encode("a b") + words.encode("c d"))
    assert given.positions == (1, 2)


def test_empty_context_leaves_the_first_token_unscored():
    given = encode_pair(Words(), "", "a b c")
    assert given.positions == (0, 1)


def test_empty_continuation_is_refused():
    with pytest.raises(LoopscopeError, match="nothing to predict"):
        encode_pair(Words(), "a b", "")


class Many(Words):
    """The same for many texts at once; knows what it was asked."""

    prefix_ids = (7,)

    def __init__(self):
        super().__init__()
        self.asked = []

    def encode_batch(self, texts):
        self.asked.append(texts)
        return [self.encode(text) for text in texts]


@pytest.mark.parametrize("split", ["joint", "separate"])
def test_rows_encoded_together_are_as_each_by_itself(split):
    rows = [
        Row("a", 0, "which of ", ("one", "two three"), answer=0),
        Row("b", 1, "which of ", ("two three",)),
        Row("c", 2, "", ("no context at all",)),
    ]
    many = Many()
    task = LoadedTask("t", "t", "solution", len(rows), "", "", "", split, tuple(rows))
    found = list(task.encode(many))
    assert found == [encode_row(many, row, split) for row in rows]
    assert all(sequence.token_ids[0] == 7 for example in found for sequence in example.sequences)
    (texts,) = many.asked
    assert len(texts) == len(set(texts)), "no text twice"


def test_target_must_follow_its_position():
    with pytest.raises(ValueError, match="position 0 does not predict token 9"):
        Sequence((1, 2, 3), (0,), (9,))


def test_nothing_to_predict_is_refused():
    with pytest.raises(LoopscopeError, match="no token to predict"):
        Sequence((1, 2), (), ())


def test_answer_must_be_an_option():
    option = Sequence((1, 2), (0,), (2,))
    with pytest.raises(LoopscopeError, match="x: the answer index 2 is not one of its 2 options"):
        Example("x", 0, "", (option, option), answer=2)


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
