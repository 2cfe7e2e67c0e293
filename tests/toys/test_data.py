"""The stream of training rows."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from tokenizers import Tokenizer

from loopscope.tasks.arithmetic.problem import answer_of, split_of
from loopscope.tasks.arithmetic.task import Arithmetic, ArithmeticChoice, problem
from loopscope.tasks.stories.task import STORIES, Stories
from loopscope.toys.data import BARE, END, STORY, WORKED, Place, build_tokenizer, make_shard, stream
from loopscope.toys.recipe import END_ID, VOCABULARY, Mixture

MIXTURE = Mixture(batch_tokens=1216, shard_problems=40, widths=(144, 224, 608))


def same(first, second):
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in ("tokens", "start", "length"))


def test_rows_are_training_texts_with_what_is_asked(tokenizer):
    seen = set()
    for rows in make_shard(tokenizer.to_str(), MIXTURE, 0, 0):
        for tokens, start, length, form in zip(rows.tokens, rows.start, rows.length, rows.form, strict=True):
            ids = [int(token) for token in tokens]
            assert ids[length - 1] == END_ID
            assert not any(ids[length:])
            seen.add(int(form))
            if form == STORY:
                head, *stories = tokenizer.decode(ids[: length - 1]).split("\n")
                assert len(stories) == STORIES
                assert all(split_of(story) == "train" for story in stories)
                assert head.startswith(tokenizer.decode(ids[:start]))
                continue
            direct = form == BARE
            context, solution = tokenizer.decode(ids[:start]), tokenizer.decode(ids[start : length - 1])
            assert context.endswith("\nAnswer:" if direct else "\nSolution:\n")
            assert solution.strip().isdecimal() if direct else answer_of(solution) is not None
            story = context.removeprefix("Problem: ").rsplit("\n", 2 if not direct else 1)[0]
            if direct:
                assert split_of(story) == "train"
    assert seen == {WORKED, BARE, STORY}


def test_comparisons_are_drawn_more_often_where_asked(tokenizer):
    """With a second draw for every problem without one, the share s of comparisons becomes 1 − (1 − s)²."""
    shares = []
    for chance in (0.0, 1.0):
        mixture = dataclasses.replace(
            MIXTURE, second_draw=chance, story_share=0.0, direct_share=1.0, shard_problems=1500
        )
        texts = [
            tokenizer.decode(row.tolist())
            for rows in make_shard(tokenizer.to_str(), mixture, 0, 3)
            for row in rows.tokens
        ]
        shares.append(sum(" would need " in text for text in texts) / len(texts))
    assert shares[1] / shares[0] == pytest.approx(1.7, abs=0.5)


def test_resuming_gives_the_same_rows(tokenizer):
    text = tokenizer.to_str()
    whole = stream(text, MIXTURE, 5)
    pairs = [next(whole) for _ in range(25)]
    assert pairs[-1][1].shard >= 1
    for cut in (0, 7, 20):
        resumed = stream(text, MIXTURE, 5, pairs[cut][1])
        rows, place = next(resumed)
        assert same(rows, pairs[cut + 1][0])
        assert place == pairs[cut + 1][1]


def test_workers_make_the_same_stream(tokenizer):
    text = tokenizer.to_str()
    alone, helped = stream(text, MIXTURE, 1), stream(text, MIXTURE, 1, Place(), workers=1)
    for _ in range(15):
        (first, here), (second, there) = next(alone), next(helped)
        assert here == there
        assert same(first, second)
    helped.close()


def test_other_seed_other_rows(tokenizer):
    first = next(stream(tokenizer.to_str(), MIXTURE, 1))[0]
    second = next(stream(tokenizer.to_str(), MIXTURE, 2))[0]
    assert not (first.tokens.shape == second.tokens.shape and same(first, second))


class Ids:
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def encode(self, text):
        return self.tokenizer.encode(text).ids


def test_size_and_end_token(tokenizer):
    assert tokenizer.get_vocab_size() == VOCABULARY == 1024
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
    for task in (Arithmetic(), ArithmeticChoice(), Stories()):
        for row, example in zip(task.rows("test", 60), task.encode(Ids(tokenizer), "test", 60), strict=True):
            head = tokenizer.encode(row.context).ids
            for text, sequence in zip(row.continuations, example.sequences, strict=True):
                assert list(sequence.token_ids) == head + tokenizer.encode(text).ids
                assert sequence.positions[0] == len(head) - 1
