"""Options that share a row: every stored number is that of options in rows of their own, with less to run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from typer.testing import CliRunner

from loopscope.api import measure_with as measure
from loopscope.cli.app import app
from loopscope.errors import LoopscopeError
from loopscope.measuring.batch_policy import BatchPolicy
from loopscope.measuring.batching import Question, collate, padded_tokens, plan_batches
from loopscope.measuring.rerun import Named
from loopscope.measuring.verify import measure_again
from loopscope.models.families.ouro import Ouro
from loopscope.models.packing import common_prefix
from loopscope.store import StoredRun, verify
from loopscope.tasks.encoding import Example, Row, Sequence


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The padded tokens of every step of an Ouro."""
    seen: list[int] = []
    step = Ouro.step

    def counted(self: Ouro, state: Tensor, *rest: Any) -> Tensor:
        seen.append(state.shape[0] * state.shape[1])
        return step(self, state, *rest)

    monkeypatch.setattr(Ouro, "step", counted)
    return seen


@pytest.mark.parametrize("family", ["ouro", "huginn"])
def test_every_column_in_float64(
    assert_same: Callable[..., None], family: str, options: str, measured: Callable[..., StoredRun]
) -> None:
    # Through a nonlinear readout the FP64 analysis takes its time and reads the same states once more.
    level = {"level": "full", "paths": True} if family == "ouro" else {"scalar_checks": 2}
    given = {"transitions": [0, 2], "tokens": True, "dtype": "float64", "readout_dtype": "float64", **level}
    plain, shared = (measured(family, options, share_context=sharing, **given) for sharing in (False, True))
    assert_same(shared, plain, 1e-10)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 1e-5)])
def test_every_column_of_an_embedded_model(
    assert_same: Callable[..., None], dtype: str, tolerance: float, options: str, tmp_path: Path
) -> None:
    plain, shared = (
        measure(
            "toy-ouro",
            [options, "arithmetic-mc"],
            output=tmp_path / f"run-{sharing}",
            transitions=[4],
            depths=range(6),
            tokens=True,
            dtype=dtype,
            readout_dtype="float64",
            limit={"arithmetic-mc": 2},
            scalar_checks=2,
            device="cpu",
            share_context=sharing,
        )
        for sharing in (False, True)
    )
    assert_same(shared, plain, tolerance)


def test_fewer_tokens_run(options: str, measured: Callable[..., StoredRun], steps: list[int]) -> None:
    measured("ouro", options)
    alone = sum(steps)
    steps.clear()
    measured("ouro", options, share_context=True)
    # One batch at each of the four loops.
    assert len(steps) == 4
    assert len(set(steps)) == 1
    assert sum(steps) < 0.4 * alone


def test_run_is_recorded_verified_and_not_mixed(
    options: str, measured: Callable[..., StoredRun], steps: list[int], tmp_path: Path
) -> None:
    run = measured("ouro", options, share_context=True, unit_size=2, tokens=True, output=tmp_path / "run")
    assert run.manifest.settings["share_context"] is True
    steps.clear()
    result = verify(run.path, partial(measure_again, named=Named(tasks=(options,))))
    assert result.findings == ()
    assert result.replayed
    with pytest.raises(LoopscopeError, match="resume refused: share_context was True, is False"):
        measured("ouro", options, unit_size=2, tokens=True, output=tmp_path / "run")


def test_reference_solutions_have_nothing_to_share(measured: Callable[..., StoredRun]) -> None:
    said: list[str] = []
    plain = measured("ouro", "arithmetic", notify=said.append)
    assert said == []
    shared = measured("ouro", "arithmetic", share_context=True, notify=said.append)
    assert said == ["share_context=True changes nothing here: no task has options"]
    for table in ("questions", "depths"):
        assert shared.read(table).equals(plain.read(table))
    assert "share_context" not in plain.manifest.settings


def test_paper_policy_is_refused(measured: Callable[..., StoredRun]) -> None:
    with pytest.raises(LoopscopeError, match=r"batch_size='paper' runs every option .* leave out share_context=True"):
        measured("ouro", "arithmetic-mc", share_context=True, batch_size="paper")


def test_model_that_reads_a_row_as_one_text_is_refused(
    measured: Callable[..., StoredRun], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Ouro, "shares_context", False)
    with pytest.raises(LoopscopeError, match=r"tiny-ouro does not say .* leave out share_context=True"):
        measured("ouro", "arithmetic-mc", share_context=True, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_command_line(options: str, tmp_path: Path) -> None:
    words = f"measure --model toy-ouro --tasks {options} --transitions 1 --device cpu --progress none --share-context"
    done = CliRunner().invoke(app, [*words.split(), "--output", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert StoredRun(tmp_path / "run").manifest.settings["share_context"] is True


def question(row: int, *sequences: tuple[int, ...]) -> Question:
    scored = tuple(Sequence(ids, (len(ids) - 2,), (ids[-1],)) for ids in sequences)
    example = Example(f"q{row}", row, "", scored, 0)
    return Question(row, example, Row(f"q{row}", row, "", ("x",) * len(sequences)), None, common_prefix(sequences))


WIDE, NARROW = question(0, (1, 2, 3, 4, 5), (1, 2, 3, 4, 6), (1, 2, 3, 4, 7, 8)), question(1, (1, 2, 3), (1, 4))
APART = question(2, (1, 2, 3), (2, 3))


def test_batches_are_planned_by_what_runs() -> None:
    assert [(q.width, q.group.rows) for q in (WIDE, NARROW, APART)] == [(8, 1), (4, 1), (3, 2)]
    assert padded_tokens([WIDE, NARROW, APART]) == 8 * 4 == collate([WIDE, NARROW, APART]).batch.input_ids.numel()
    batches = plan_batches([NARROW, APART, WIDE], BatchPolicy("tokens", budget=12))
    assert [[q.row for q in batch] for batch in batches] == [[0], [1, 2]]
