"""The paper's number of reference prediction positions, and what else the wording promises about them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopscope.models.tokenizer import Tokenizer, load_tokenizer
from loopscope.tasks import Example, LoadedTask, encode_pair, load_task


@pytest.fixture(scope="module")
def examples(data_dir: Path, ouro_tokenizer: Tokenizer) -> list[Example]:
    return list(load_task("gsm8k", data_dir=data_dir).encode(ouro_tokenizer))


def test_gsm8k_has_exactly_the_papers_reference_prediction_positions(examples: list[Example]) -> None:
    """Appendix "Token-Level Audit of Early Recurrent Updates": 1319 questions, 167606 positions."""
    assert len(examples) == 1319
    assert sum(example.prediction_count for example in examples) == 167_606


def test_the_scored_tokens_are_the_published_answers(
    examples: list[Example], data_dir: Path, ouro_tokenizer: Tokenizer
) -> None:
    rows = load_task("gsm8k", data_dir=data_dir).rows
    for example, row in zip(examples, rows, strict=True):
        assert ouro_tokenizer.decode(example.sequences[0].targets) == row.continuations[0]
        assert "####" in row.continuations[0]


@pytest.mark.parametrize("spec", ["gsm8k", "gsm8k:train256", "math500"])
def test_encoding_apart_and_together_give_the_same_tokens(data_dir: Path, ouro_tokenizer: Tokenizer, spec: str) -> None:
    """The prompt ends with a line end, where Ouro's tokenizer breaks: the model reads ordinary text."""
    task = load_task(spec, data_dir=data_dir)
    for row, example in _pairs(task.rows, task.encode(ouro_tokenizer)):
        together = ouro_tokenizer.encode(row.context + row.continuations[0])
        assert list(example.sequences[0].token_ids) == together


OURO = (
    ("gsm8k", 167606, "16c276a41e3ebad2306e47eafad9e23f3a798a4b3ee04afd179fffd553d15e1d"),
    ("math500", 116084, "bffa35e1c17054443488297f8c9e4622660d49715c758a5d40906c73fd80f091"),
    pytest.param(
        "hellaswag", 1189447, "1b611672861d1c6d0f8def3614e5cb74dca23b8cfa031d25746ff62895e149d8", marks=pytest.mark.slow
    ),
    ("arc_challenge", 27878, "2aad663620bf012bf8c9fb9108ba70d931e34a2519be837b516d8305362a7a76"),
    ("piqa", 83879, "efa2ea94b5d00a71c0816fff0431f84f41f96a9230d66b6f2373382fe4d20951"),
    ("boolq", 6540, "d2c2c11bcb74d1f39abb4c02f7e5b8c5edf8bab832844f7a2a2307ac0c05e39e"),
    ("commonsense_qa", 6105, "c68a10d63c8a9ef64c2dcc03c5433e0df4fa0debf84faec864c35222324adb77"),
)
EMBEDDED = (
    ("arithmetic", 311628, "e607f9c6228c4cd05a4b010d9ea4f453ec84dc2f4b74813cda6b08da165cce64"),
    ("arithmetic-mc", 68048, "68b2d68e092228ff7fc92337e42d7dc7faf6e46ac4e5d9444fc175a58483bf4c"),
    ("stories", 722053, "20242e1789463d2bc0833fcc5eba47365850ebe2b996bf30c5c1ef7aaf08443a"),
)


def _hashed(task: LoadedTask, tokenizer: Tokenizer) -> tuple[int, str]:
    """How many tokens are scored, and the hash of every token, position and target."""
    digest, count = hashlib.sha256(), 0
    for made in task.encode(tokenizer):
        count += made.prediction_count
        content = [made.id, made.answer, [[s.token_ids, s.positions, s.targets] for s in made.sequences]]
        digest.update(json.dumps(content, separators=(",", ":")).encode())
    return count, digest.hexdigest()


@pytest.mark.parametrize(("spec", "count", "digest"), OURO)
def test_every_benchmark_is_encoded_as_it_was(
    data_dir: Path, ouro_tokenizer: Tokenizer, spec: str, count: int, digest: str
) -> None:
    """Written with the code of commit 6c86db7, which read tokenizer.json by itself."""
    assert _hashed(load_task(spec, data_dir=data_dir), ouro_tokenizer) == (count, digest)


@pytest.mark.parametrize(("spec", "count", "digest"), EMBEDDED)
def test_embedded_tasks_are_encoded_as_they_were(spec: str, count: int, digest: str) -> None:
    assert _hashed(load_task(spec), load_tokenizer("toy-ouro")) == (count, digest)


def _pairs(rows: tuple, examples: Iterator[Example]) -> Iterator[tuple]:
    return zip(rows, examples, strict=True)


class Letters:
    """One token a character, and a mark in front, as Huginn's tokenizer has."""

    prefix_ids = (7,)

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]


@pytest.mark.parametrize("split", ["joint", "separate"])
def test_a_tokenizers_prefix_stands_before_every_sequence_and_is_not_scored(split: str) -> None:
    sequence = encode_pair(Letters(), "ab", "cd", split)  # type: ignore[arg-type]
    assert sequence.token_ids == (7, *map(ord, "abcd"))
    assert sequence.positions == (2, 3)
    assert sequence.targets == (ord("c"), ord("d"))


def test_with_a_prefix_even_an_empty_context_scores_the_first_token() -> None:
    assert encode_pair(Letters(), "", "cd", "separate").targets == (ord("c"), ord("d"))
