"""The stream of training rows."""

import numpy as np

from loopscope.tasks.arithmetic.problem import split_of
from loopscope.tasks.arithmetic.solution import answer_of
from loopscope.toys.data import Place, make_shard, stream
from loopscope.toys.recipe import END_ID, Mixture

MIXTURE = Mixture(batch_tokens=720, shard_problems=40, widths=(160, 360))


def same(first, second):
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in ("tokens", "start", "length"))


def test_rows_are_training_problems_with_their_solution(tokenizer):
    seen = set()
    for rows in make_shard(tokenizer.to_str(), MIXTURE, 0, 0):
        for tokens, start, length, direct in zip(rows.tokens, rows.start, rows.length, rows.direct, strict=True):
            ids = [int(token) for token in tokens]
            assert ids[length - 1] == END_ID
            assert not any(ids[length:])
            context, solution = tokenizer.decode(ids[:start]), tokenizer.decode(ids[start : length - 1])
            assert context.endswith("\nAnswer:" if direct else "\nSolution:\n")
            assert solution.strip().isdecimal() if direct else answer_of(solution) is not None
            story = context.removeprefix("Problem: ").rsplit("\n", 2 if not direct else 1)[0]
            if direct:
                assert split_of(story) == "train"
            seen.add(bool(direct))
    assert seen == {True, False}


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
