"""The paper's number of reference prediction positions, and what else the wording promises about them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from loopscope.models.tokenizer import Tokenizer
from loopscope.tasks import Example, encode_pair, load_task


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
