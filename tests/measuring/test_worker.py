"""Batches in flight: launched one ahead, halved whenever memory refuses, units stored in order and never lost.

Next to the device: one call in the background, in order, and nothing that was given is lost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from loopscope.api import measure_with as measure
from loopscope.errors import LoopscopeError
from loopscope.measuring import readouts as affine
from loopscope.measuring import run as driver
from loopscope.measuring import worker
from loopscope.measuring.batch_pass import BatchPass, Tables
from loopscope.readout import AffinePath, Survey, affine_path_from_states
from loopscope.store import StoredRun, verify
from loopscope.tasks.encoding import LoadedTask

SMALL = {"limit": 6, "unit_size": 2, "level": "quick"}


class Watched(BatchPass):
    """A pass that notes when it is launched and finished."""

    seen: list[str]

    def __init__(self, model: Any, settings: Any, questions: Any, **options: Any) -> None:
        super().__init__(model, settings, questions, **options)
        self.rows = ",".join(str(question.row) for question in sorted(questions, key=lambda q: q.row))

    def launch(self) -> BatchPass:
        self.seen.append(f"launch {self.rows}")
        pending, seen, rows = super().launch(), self.seen, self.rows
        finish = pending.finish

        def watched() -> Tables:
            seen.append(f"finish {rows}")
            return finish()

        pending.finish = watched  # type: ignore[method-assign]
        return pending


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happened to the batches of the worker, in order."""
    found: list[str] = []
    monkeypatch.setattr(Watched, "seen", found, raising=False)
    monkeypatch.setattr(worker, "BatchPass", Watched)
    return found


def test_the_next_batch_is_launched_before_the_last_is_finished(
    seen: list[str], measured: Callable[..., StoredRun]
) -> None:
    measured("ouro", "arithmetic", **SMALL)
    assert seen == ["launch 0,1", "launch 2,3", "finish 0,1", "launch 4,5", "finish 2,3", "finish 4,5"]


def test_questions_are_encoded_once(measured: Callable[..., StoredRun], monkeypatch: pytest.MonkeyPatch) -> None:
    encoded, encode = [], LoadedTask.encode_row

    def counted(self: LoadedTask, encoder: Any, row: Any) -> Any:
        encoded.append(row.source_row)
        return encode(self, encoder, row)

    monkeypatch.setattr(LoadedTask, "encode_row", counted)
    measured("ouro", "arithmetic", **SMALL)
    assert encoded == list(range(6))


def test_memory_refused_at_the_end_of_a_pass(
    measured: Callable[..., StoredRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"limit": 8, "unit_size": 4, "batch_size": "4"}
    plenty = measured("ouro", "arithmetic", **options)
    finish, refused = BatchPass.finish, iter([False, True])

    def short(self: BatchPass) -> Tables:
        if next(refused, False):
            raise MemoryError
        return finish(self)

    monkeypatch.setattr(BatchPass, "finish", short)
    said: list[str] = []
    run = measured("ouro", "arithmetic", notify=said.append, **options)
    assert len(said) == 1
    assert "out of memory with 4 questions" in said[0]
    assert [event["unit"] for event in run.events if event["event"] == "notice"] == [1]
    for name in ("utility_before", "gain", "slope", "quadratic"):
        np.testing.assert_allclose(run.records[name], plenty.records[name], rtol=1e-4, atol=1e-6)


def test_what_was_measured_is_stored_when_a_later_batch_fails(
    measured: Callable[..., StoredRun],
    monkeypatch: pytest.MonkeyPatch,
    contents: Callable[[Path], dict[str, bytes]],
    tmp_path: Path,
) -> None:
    whole = measured("ouro", "arithmetic", **SMALL)
    launch, count = BatchPass.launch, iter(range(10))

    def interrupted(self: BatchPass) -> BatchPass:
        if next(count) == 2:
            raise KeyboardInterrupt
        return launch(self)

    monkeypatch.setattr(BatchPass, "launch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measured("ouro", "arithmetic", output=tmp_path / "cut", **SMALL)
    monkeypatch.undo()
    assert [file.name for file in (tmp_path / "cut" / "units").iterdir()] == ["000000.json"]
    run = measured("ouro", "arithmetic", output=tmp_path / "cut", **SMALL)
    assert contents(run.path) == contents(whole.path)
    assert verify(run).ok


def test_batches_of_a_unit_are_saved_by_time_and_not_measured_again(
    measured: Callable[..., StoredRun],
    monkeypatch: pytest.MonkeyPatch,
    contents: Callable[[Path], dict[str, bytes]],
    tmp_path: Path,
) -> None:
    options = {"limit": 9, "unit_size": 5, "batch_size": 1, "level": "quick", "tokens": True}
    whole = measured("ouro", "arithmetic", **options)
    monkeypatch.setattr(driver, "SECONDS_BETWEEN_SAVES", 0.0)
    launch, launched = BatchPass.launch, []

    def interrupted(self: BatchPass) -> BatchPass:
        launched.append(self)
        if len(launched) == 4:
            raise KeyboardInterrupt
        return launch(self)

    monkeypatch.setattr(BatchPass, "launch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measured("ouro", "arithmetic", output=tmp_path / "cut", **options)
    assert not list((tmp_path / "cut" / "units").iterdir())
    first, _ = (tmp_path / "cut" / "partial").iterdir()
    damaged = bytearray(first.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    first.write_bytes(damaged)
    run = measured("ouro", "arithmetic", output=tmp_path / "cut", **options)
    assert len(launched) == 4 + 8, "one of nine was saved and sound"
    assert contents(run.path) == contents(whole.path)
    assert verify(run).ok


def test_token_that_the_kernels_give_up_is_read_another_way(
    measured: Callable[..., StoredRun], monkeypatch: pytest.MonkeyPatch, contents: Callable[[Path], dict[str, bytes]]
) -> None:
    options = {"limit": 6, "unit_size": 2, "tokens": True}
    sound = measured("ouro", "arithmetic", **options)
    survey, checks = AffinePath.survey, []

    def read(*arguments: Any, check: bool, **options: Any) -> AffinePath:
        path = affine_path_from_states(*arguments, check=check, **options)
        checks.append(check)
        monkeypatch.setattr(AffinePath, "survey", survey if check else given_up)
        return path

    def given_up(self: AffinePath, *arguments: Any) -> Survey:
        found = survey(self, *arguments)
        lost = torch.zeros_like(found.initial).index_fill_(0, torch.tensor([3]), torch.nan)
        return dataclasses.replace(found, initial=found.initial + lost, gains=found.gains + lost.unsqueeze(1))

    monkeypatch.setattr(affine, "affine_path_from_states", read)
    run = measured("ouro", "arithmetic", **options)
    assert contents(run.path) == contents(sound.path)
    # Two units were launched before it was known; both are measured again, the third carefully from the start.
    a_batch = checks.count(False) // 2
    assert checks == [False] * (2 * a_batch) + [True] * (3 * a_batch)


def test_single_question_that_does_not_fit_is_named(
    measured: Callable[..., StoredRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        torch.empty(1 << 60, dtype=torch.uint8)

    monkeypatch.setattr(affine.AffineReadout, "paths", refuse)
    with pytest.raises(LoopscopeError, match="alone does not fit into memory"):
        measured("ouro", "arithmetic", limit=2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_refusal_halves_the_batch(checkpoint: Callable[[str], str], tmp_path: Path) -> None:
    said: list[str] = []
    torch.cuda.empty_cache()  # what earlier tests left cached would not have to be allocated
    torch.cuda.set_per_process_memory_fraction(0.002)
    try:
        run = measure(
            checkpoint("huginn"),
            ["arithmetic"],
            output=tmp_path / "run",
            transitions=[1],
            limit=512,
            unit_size=512,
            batch_size="512",
            device="cuda",
            notify=said.append,
        )
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert said
    assert run.finished


def test_same_command_again_says_that_it_is_finished(measured: Callable[..., StoredRun]) -> None:
    run = measured("ouro", "arithmetic", limit=2, level="quick")
    said: list[str] = []
    measured("ouro", "arithmetic", limit=2, level="quick", output=run.path, notify=said.append)
    assert [line.partition(":")[0] for line in said] == [f"{run.path} is finished"]
    assert [event["event"] for event in run.events] == ["new", "call", "ways", "unit", "finished", "call"]
