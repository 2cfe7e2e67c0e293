"""Batches without padding, and options that share a row: every stored number is that of padded rows of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

import loopscope as ls
from loopscope.api import measure_with as measure
from loopscope.measuring import worker
from loopscope.measuring.arguments import BatchPolicy
from loopscope.measuring.batching import Question, collate, padded_tokens, plan_batches, run_tokens
from loopscope.measuring.verify import Named, measure_again
from loopscope.models.batch import common_prefix
from loopscope.models.families.ouro import Ouro
from loopscope.store import StoredRun, verify
from loopscope.tasks.encoding import Example, Row, Sequence


@pytest.fixture
def unpadded(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """As on a GPU; on this device the plain code runs part by part."""
    return lambda chosen: monkeypatch.setattr(worker, "runs_unpadded", lambda model: chosen)


@pytest.mark.parametrize("share", [False, True], ids=["apart", "shared"])
@pytest.mark.parametrize("family", ["ouro", "huginn"])
def test_every_column_in_float64(
    assert_same: Callable[..., None],
    family: str,
    share: bool,
    options: str,
    measured: Callable[..., StoredRun],
    unpadded: Callable[[bool], None],
) -> None:
    given = {"transitions": [1], "tokens": True, "dtype": "float64", "readout_dtype": "float64", "scalar_checks": 1}
    unpadded(False)
    padded = measured(family, options, **given)
    unpadded(True)
    found = measured(family, options, share_context=share, **given)
    assert_same(found, padded, 1e-10)
    assert (padded.manifest.batch.padding, found.manifest.batch.padding) == ("right", "none")


def test_what_runs_are_the_tokens_alone_and_a_replay_runs_them_again(
    options: str,
    measured: Callable[..., StoredRun],
    unpadded: Callable[[bool], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    unpadded(True)
    seen: list[tuple[int, int]] = []
    step = Ouro.step

    def counted(self: Ouro, state: Tensor, *rest: Any) -> Tensor:
        seen.append(tuple(state.shape[:2]))
        return step(self, state, *rest)

    monkeypatch.setattr(Ouro, "step", counted)
    run = measured("ouro", options, unit_size=2, output=tmp_path / "run")
    examples = ls.load_task(options).encode(ls.load_tokenizer("toy-ouro"))
    tokens = sum(len(sequence.token_ids) for example in examples for sequence in example.sequences)
    assert {rows for rows, _ in seen} == {1}
    assert sum(width for _, width in seen[:: len(seen) // len(set(seen))]) == tokens
    seen.clear()
    assert verify(run.path, partial(measure_again, named=Named(tasks=(options,)))).findings == ()
    assert {rows for rows, _ in seen} == {1}


def drawn_questions(*, options: int, shares: bool) -> list[Question]:
    """Of lengths that spread as a benchmark's do."""
    chance = np.random.default_rng(3)
    found = []
    for row in range(64):
        context = tuple(range(int(chance.lognormal(4.5, 0.4)) + 1))
        sequences = [(*context, *[1000 + place] * int(chance.integers(5, 60))) for place in range(options)]
        scored = tuple(Sequence(ids, (len(ids) - 2,), (ids[-1],)) for ids in sequences)
        example = Example(f"q{row}", row, "", scored, 0 if options > 1 else None)
        shared = common_prefix(sequences) if shares else 0
        found.append(Question(row, example, Row(f"q{row}", row, "", ("x",) * options), None, shared))
    return found


@pytest.mark.parametrize(("options", "shares"), [(1, False), (4, False), (4, True)])
def test_no_batch_runs_a_padded_token(options: int, shares: bool) -> None:
    questions = drawn_questions(options=options, shares=shares)
    policy = BatchPolicy.parse("auto").on("cuda", unpadded=True)
    batches = plan_batches(questions, policy)
    assert sorted(question.row for batch in batches for question in batch) == list(range(64))
    # Whatever the lengths, batches are as large as their states in padded rows may be.
    assert len(batches) == 1 + (padded_tokens(questions) > 65536)
    assert all(padded_tokens(batch) <= 65536 for batch in batches)
    for batch in batches:
        ran = collate(batch, policy)
        assert ran.batch.input_ids.numel() == run_tokens(batch, policy) == sum(q.group.tokens for q in batch)
        assert padded_tokens(batch) > run_tokens(batch, policy)
        # Options that share tokens stand in one row in any case.
        padded = run_tokens(batch, policy) if shares else padded_tokens(batch)
        assert collate(batch).batch.input_ids.numel() == padded
        assert ran.sequences.input_ids.shape[0] == sum(len(q.example.sequences) for q in batch)


def test_every_column_of_an_embedded_model(assert_same: Callable[..., None], options: str, tmp_path: Path) -> None:
    plain, shared = (
        measure(
            "toy-ouro",
            [options, "arithmetic-mc"],
            output=tmp_path / f"run-{sharing}",
            transitions=[4],
            depths=range(6),
            tokens=True,
            dtype="float64",
            readout_dtype="float64",
            limit={"arithmetic-mc": 2},
            scalar_checks=2,
            device="cpu",
            share_context=sharing,
        )
        for sharing in (False, True)
    )
    assert_same(shared, plain, 1e-10)


def question(row: int, *sequences: tuple[int, ...]) -> Question:
    scored = tuple(Sequence(ids, (len(ids) - 2,), (ids[-1],)) for ids in sequences)
    example = Example(f"q{row}", row, "", scored, 0)
    return Question(row, example, Row(f"q{row}", row, "", ("x",) * len(sequences)), None, common_prefix(sequences))


WIDE, NARROW = question(0, (1, 2, 3, 4, 5), (1, 2, 3, 4, 6), (1, 2, 3, 4, 7, 8)), question(1, (1, 2, 3), (1, 4))
APART = question(2, (1, 2, 3), (2, 3))


def test_batches_are_planned_by_what_runs() -> None:
    assert [(q.group.width, q.group.rows) for q in (WIDE, NARROW, APART)] == [(8, 1), (4, 1), (3, 2)]
    assert padded_tokens([WIDE, NARROW, APART]) == 8 * 4
    assert collate([WIDE, NARROW, APART]).batch.input_ids.numel() == 8 + 4 + 5
    batches = plan_batches([NARROW, APART, WIDE], BatchPolicy("tokens", budget=12))
    assert [[q.row for q in batch] for batch in batches] == [[0], [1, 2]]
