"""The toy tokenizer."""

import random

from tokenizers import Tokenizer

from loopscope.tasks.arithmetic.task import Arithmetic, ArithmeticChoice, problem
from loopscope.toys.data import END, build_tokenizer
from loopscope.toys.recipe import END_ID, VOCABULARY


class Ids:
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def encode(self, text):
        return self.tokenizer.encode(text).ids


def test_size_and_end_token(tokenizer):
    assert tokenizer.get_vocab_size() == VOCABULARY <= 512
    assert tokenizer.token_to_id(END) == END_ID


def test_any_text_survives(tokenizer):
    letters = [chr(code) for code in (*range(1, 0x250), *range(0x4E00, 0x4E40), *range(0x1F600, 0x1F640))]
    draw = random.Random(0)
    for _ in range(200):
        text = "".join(draw.choices(letters, k=40))
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_every_byte_is_a_token(tokenizer):
    text = "".join(chr(code) for code in range(1, 0x800))
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_digits_are_single_tokens(tokenizer):
    assert tokenizer.encode("1234").tokens == ["1", "2", "3", "4"]


def test_nothing_is_added_at_the_ends(tokenizer):
    assert END_ID not in tokenizer.encode("Answer: 23").ids


def test_same_bytes_every_time():
    assert build_tokenizer(500).to_str() == build_tokenizer(500).to_str()


def test_saved_tokenizer_is_the_same(tokenizer):
    again = Tokenizer.from_str(tokenizer.to_str(pretty=True))
    text = problem("test", 1).question
    assert again.encode(text).ids == tokenizer.encode(text).ids


def test_solution_starts_at_a_token_boundary(tokenizer):
    """Context and continuation encode apart to the tokens of the whole text, which training relies on."""
    for task in (Arithmetic(), ArithmeticChoice()):
        for row, example in zip(task.rows("test", 60), task.encode(Ids(tokenizer), "test", 60), strict=True):
            head = tokenizer.encode(row.context).ids
            for text, sequence in zip(row.continuations, example.sequences, strict=True):
                assert list(sequence.token_ids) == head + tokenizer.encode(text).ids
                assert sequence.positions[0] == len(head) - 1
