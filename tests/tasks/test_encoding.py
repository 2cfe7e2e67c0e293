"""Context and continuation: where the boundary falls."""

from __future__ import annotations

import pytest

from loopscope.errors import LoopscopeError
from loopscope.tasks.encoding import Example, LoadedTask, Row, Sequence, encode_pair, encode_row


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
