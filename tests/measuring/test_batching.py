"""Batches: what they hold, how they are planned and shrink, and that no number depends on them or on their padding."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import loopscope as ls
from loopscope.measuring import worker
from loopscope.measuring.batching import Question, collate, groups_within, padded_tokens, plan_batches, shrunk
from loopscope.measuring.config import BatchPolicy
from loopscope.measuring.verify import Named, measure_again
from loopscope.models.batch import common_prefix
from loopscope.models.families.ouro import Ouro
from loopscope.store import StoredRun, verify
from loopscope.tasks import encoding


def question(row: int, *sequences: Sequence[int], shares: bool = False) -> Question:
    """A question of these token ids, whose last is scored."""
    scored = tuple(encoding.Sequence(tuple(ids), (len(ids) - 2,), (ids[-1],)) for ids in sequences)
    example = encoding.Example(f"q{row}", row, "", scored, 0 if len(sequences) > 1 else None)
    text = encoding.Row(f"q{row}", row, "", ("x",) * len(sequences))
    return Question(row, example, text, None, common_prefix(sequences) if shares else 0)


def drawn_questions(*, options: int, shares: bool) -> list[Question]:
    """Of lengths that spread as a benchmark's do."""
    chance = np.random.default_rng(3)
    found = []
    for row in range(64):
        context = tuple(range(int(chance.lognormal(4.5, 0.4)) + 1))
        sequences = [(*context, *[1000 + place] * int(chance.integers(5, 60))) for place in range(options)]
        found.append(question(row, *sequences, shares=shares))
    return found


def test_batches_are_those_with_the_least_work() -> None:
    """Against every way to cut the questions, ordered by length, into batches."""
    lengths = np.random.default_rng(5).choice([200, 250, 600, 900, 1500], 9)
    questions = [question(row, range(length)) for row, length in enumerate(lengths.tolist())]
    ordered = sorted(questions, key=lambda q: (-q.group.width, q.row))

    def work(batches: Iterable[list[Question]]) -> int:
        return sum(max(padded_tokens(batch), 1024) for batch in batches)

    def cuts() -> Iterator[list[list[Question]]]:
        for chosen in itertools.product([False, True], repeat=len(ordered) - 1):
            marks = [0, *(place for place, cut in enumerate(chosen, 1) if cut), len(ordered)]
            batches = [ordered[start:stop] for start, stop in itertools.pairwise(marks)]
            if all(len(batch) == 1 or padded_tokens(batch) <= 4096 for batch in batches):
                yield batches

    found = plan_batches(questions, BatchPolicy("tokens", budget=4096))
    assert [q for batch in found for q in batch] == ordered
    assert work(found) == min(map(work, cuts()))
    assert len(found) > 2


def test_shrinking_halves_until_it_fits() -> None:
    questions = [question(row, range(length)) for row, length in enumerate([10, 40, 20, 30, 35, 12, 8])]
    batches = plan_batches(questions, BatchPolicy.parse("7"))
    small = shrunk(batches, 80)
    assert sorted(q.row for batch in small for q in batch) == list(range(7))
    assert all(len(batch) == 1 or padded_tokens(batch) <= 80 for batch in small)


def test_numbers_do_not_depend_on_the_layout(measured: Callable[..., StoredRun]) -> None:
    runs = [
        measured("huginn", "arithmetic-mc", limit=6, batch_size=size, unit_size=unit)
        for size, unit in (("auto", 64), ("paper", 4), ("1", 2))
    ]
    first, *others = (run.records for run in runs)
    for run, other in zip(runs[1:], others, strict=True):
        assert run.manifest.batch.policy in ("paper", "questions")
        for name in ("utility_before", "gain", "slope", "quadratic", "quadratic_gain", "output_kl", "update_norm"):
            np.testing.assert_allclose(other[name], first[name], rtol=2e-4, atol=2e-6)


@given(st.lists(st.integers(1, 9), max_size=12), st.integers(0, 20))
def test_groups_are_whole_in_order_and_within_the_budget(counts: list[int], most: int) -> None:
    groups = [list(group) for group in groups_within(counts, most)]
    assert [index for group in groups for index in group] == list(range(len(counts)))
    sizes = [sum(counts[index] for index in group) for group in groups]
    assert all(size <= most or len(group) == 1 for size, group in zip(sizes, groups, strict=True))
    # None could take the first of the next.
    assert all(size + counts[following[0]] > most for size, following in zip(sizes, groups[1:], strict=False))


def test_batches_are_planned_by_what_runs() -> None:
    wide = question(0, (1, 2, 3, 4, 5), (1, 2, 3, 4, 6), (1, 2, 3, 4, 7, 8), shares=True)
    narrow, apart = question(1, (1, 2, 3), (1, 4), shares=True), question(2, (1, 2, 3), (2, 3))
    assert [(q.group.width, q.group.rows) for q in (wide, narrow, apart)] == [(8, 1), (4, 1), (3, 2)]
    assert padded_tokens([wide, narrow, apart]) == 8 * 4
    # Options that share tokens stand in one row in any case.
    assert collate([wide, narrow, apart]).batch.input_ids.numel() == 8 + 4 + 5
    batches = plan_batches([narrow, apart, wide], BatchPolicy("tokens", budget=12))
    assert [[q.row for q in batch] for batch in batches] == [[0], [1, 2]]


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
        assert ran.batch.input_ids.numel() == sum(q.group.tokens for q in batch)
        assert padded_tokens(batch) > ran.batch.input_ids.numel()
        plain = ran.batch.input_ids.numel() if shares else padded_tokens(batch)
        assert collate(batch).batch.input_ids.numel() == plain
        assert ran.sequences.input_ids.shape[0] == sum(len(q.example.sequences) for q in batch)


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
