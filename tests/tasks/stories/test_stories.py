"""The task `stories`: the same rows every time, held out by wording, long enough, and not to be foretold."""

import math
import os
import re
import string
import subprocess
import sys
from collections import Counter

import pytest

from loopscope.errors import LoopscopeError
from loopscope.models.tokenizer import load_tokenizer
from loopscope.tasks import load_task
from loopscope.tasks.arithmetic import words
from loopscope.tasks.arithmetic.problem import Chooser, split_of, wording
from loopscope.tasks.stories.phrases import PHRASES, SENTENCES
from loopscope.tasks.stories.story import CAST, document, tell
from loopscope.tasks.stories.task import STORIES, Stories

ROWS = 60


@pytest.fixture(scope="module")
def rows():
    return {split: list(Stories().rows(split, ROWS)) for split in ("train", "test")}


def stories(row):
    head, first, *others = (row.context + row.continuations[0]).split("\n")
    assert row.context == f"{head}\n{first}\n"
    return [first, *others]


def test_rows_are_the_same_in_another_process(rows):
    code = (
        "from loopscope.tasks.stories.task import Stories\n"
        "import hashlib\n"
        "rows = [row.context + row.continuations[0] for row in Stories().rows('test', 5)]\n"
        "print(hashlib.sha256(''.join(rows).encode()).hexdigest())\n"
    )
    printed = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert printed[0] == printed[1]
    assert next(Stories().rows("test", ids=["test-7"])) == rows["test"][7]
    assert next(Stories(seed=1).rows("test", 1)) != rows["test"][0]


def test_no_wording_is_in_two_splits(rows):
    seen = {split: {wording(story) for row in made for story in stories(row)} for split, made in rows.items()}
    assert all(split_of(story) == split for split, made in rows.items() for row in made for story in stories(row))
    assert not seen["train"] & seen["test"]
    assert len(seen["test"]) >= 0.99 * ROWS * STORIES


def test_documents_have_four_stories_about_one_cast(rows):
    for row in rows["test"]:
        head, told = row.context.split("\n")[0], stories(row)
        assert len(told) == STORIES
        named = re.compile(r"\b(?:" + "|".join(words.NAMES) + r")\b")
        cast = set(named.findall(head))
        assert len(cast) == CAST
        assert all(set(named.findall(story)) <= cast for story in told)


def test_references_have_a_few_hundred_tokens(rows):
    """Counted in words and marks; in tokens of the embedded models a document fits their positions."""
    lengths = [len(re.findall(r"\w+|[^\w\s]", row.continuations[0])) for row in rows["test"]]
    assert min(lengths) >= 180
    assert max(lengths) <= 400
    tokenizer = load_tokenizer("toy-ouro")
    assert all(len(example.sequences[0].token_ids) < 1024 for example in Stories().encode(tokenizer, "test", ROWS))


def test_the_next_word_stays_uncertain(rows):
    """The entropy of the word after two given ones, where these occurred often: between known and anything."""
    text = [re.findall(r"\w+|[^\w\s]", story) for row in Stories().rows("train", 400) for story in stories(row)]
    after = {}
    for sentence in text:
        for first, second, third in zip(sentence, sentence[1:], sentence[2:], strict=False):
            after.setdefault((first, second), Counter())[third] += 1
    often = [counts for counts in after.values() if counts.total() >= 20]
    total = sum(counts.total() for counts in often)
    bits = sum(-n * math.log2(n / counts.total()) for counts in often for n in counts.values()) / total
    assert 1.0 < bits < 5.0


def test_every_gap_has_phrases_and_every_slot_a_value():
    texts = [text for texts in (*SENTENCES.values(), *PHRASES.values()) for text in texts]
    gaps = {gap.lower() for text in texts for gap in re.findall(r"<(\w+)>", text)}
    assert gaps <= set(PHRASES)
    slots = {name for text in texts for _, name, _, _ in string.Formatter().parse(text) if name}
    assert slots <= {"A", "B", "S", "x", "x1", "c1", "place"}
    for seed in range(200):
        story = tell(Chooser(seed), ["Ada", "Ben", "Clara", "Omar"])
        assert not set("<>{}") & set(story)
        assert not re.search(r"\b[Aa] [aeiou]", story)


def test_a_document_of_any_length():
    head, told = document(Chooser(3), "validation", 7)
    assert len(told) == 7
    assert " and " in head


def test_it_is_a_task_like_the_others():
    loaded = load_task("stories", limit=3)
    assert (loaded.name, loaded.kind, loaded.source_rows) == ("stories", "solution", 5000)
    assert loaded.rows == tuple(Stories().rows("test", 3))
    with pytest.raises(LoopscopeError, match="stories has no split 'dev'"):
        next(Stories().rows("dev"))
