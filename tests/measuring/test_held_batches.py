"""Batches that wait for kernels to be compiled: they go through their loops first, and no record differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from loopscope.measuring import depth_pass, worker
from loopscope.measuring.depth_pass import PendingTrip, Trip
from loopscope.store import StoredRun

OPTIONS: dict[str, Any] = {"limit": 6, "unit_size": 4, "batch_size": "2", "scalar_checks": 0}
SHORT: dict[str, Any] = OPTIONS | {"level": "quick", "transitions": [2], "depths": []}


class Compilers:
    """Kernels that are there from the n-th time on that somebody asks; what waits may take so many bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, asked: int, memory: int = 2**40) -> None:
        self.seen: list[str] = []
        answers: Iterator[bool] = chain(repeat(True, asked), repeat(False))
        for module in (depth_pass, worker):
            monkeypatch.setattr(module, "is_compiling", lambda: next(answers))
        device = SimpleNamespace(total_memory=memory)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: device)
        begin, launch, finish = Trip.begin, Trip.launch, PendingTrip.finish

        def begun(trip: Trip) -> int:
            waits = begin(trip)
            self.seen.append("waits" if waits else "read")
            return waits

        def launched(trip: Trip) -> PendingTrip:
            self.seen.append("launch")
            return launch(trip)

        def finished(pending: PendingTrip) -> Any:
            self.seen.append("finish")
            return finish(pending)

        monkeypatch.setattr(Trip, "begin", begun)
        monkeypatch.setattr(Trip, "launch", launched)
        monkeypatch.setattr(PendingTrip, "finish", finished)


def refuse_memory_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The second trip that is asked to `begin` or `launch` finds no memory."""
    method, refused = getattr(Trip, name), iter([False, True])

    def short(trip: Trip) -> Any:
        if next(refused, False):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return method(trip)

    monkeypatch.setattr(Trip, name, short)


EVERYTHING: dict[str, Any] = {"transitions": [1, 3], "depths": [2, 5], "tokens": True, "trace": True, "lens": 2}
EVERYTHING |= {"trajectories": [0.5], "keep_states": 2}
FULL: dict[str, Any] = {"transitions": [1], "level": "full", "limit": 3, "batch_size": "1"}


@pytest.mark.parametrize("asked", [pytest.param(EVERYTHING, id="everything"), pytest.param(FULL, id="level full")])
def test_what_has_waited_is_stored_as_if_it_had_not(
    asked: dict[str, Any],
    measured: Callable[..., StoredRun],
    contents: Callable[[Path], dict[str, bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_once = contents(measured("ouro", "arithmetic", **OPTIONS | asked).path)
    compilers = Compilers(monkeypatch, 1000)
    waited = measured("ouro", "arithmetic", **OPTIONS | asked)
    assert contents(waited.path) == at_once
    assert compilers.seen[:3] == ["waits", "waits", "waits"]
    assert "finish" not in compilers.seen[: compilers.seen.index("launch")]


def test_batches_that_wait_are_read_as_soon_as_the_kernels_are_there(
    measured: Callable[..., StoredRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each of the first two batches asks before it reads, and its worker asks whether to go on without it.
    compilers = Compilers(monkeypatch, 4)
    measured("ouro", "arithmetic", **SHORT)
    steps = ["waits", "waits", "read", *("launch", "read") * 2, "launch", "finish", "finish", "finish"]
    assert compilers.seen == steps


def test_no_more_waits_than_there_is_memory_for(
    measured: Callable[..., StoredRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    compilers = Compilers(monkeypatch, 1000, memory=1)
    measured("ouro", "arithmetic", **SHORT)
    steps = [step for step in compilers.seen if step != "read"]
    assert steps == ["waits", "launch", "waits", "launch", "finish", "waits", "launch", "finish", "finish"]


def test_memory_that_is_refused_is_given_free_by_what_waits(
    measured: Callable[..., StoredRun],
    contents: Callable[[Path], dict[str, bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_once = contents(measured("ouro", "arithmetic", **SHORT).path)
    compilers = Compilers(monkeypatch, 1000)
    refuse_memory_once(monkeypatch, "begin")
    said: list[str] = []
    run = measured("ouro", "arithmetic", notify=said.append, **SHORT)
    assert compilers.seen[:2] == ["waits", "launch"]
    assert said == []
    assert contents(run.path) == at_once


def test_what_has_waited_and_no_longer_fits_is_halved(
    measured: Callable[..., StoredRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = measured("ouro", "arithmetic", **SHORT)
    Compilers(monkeypatch, 1000)
    refuse_memory_once(monkeypatch, "launch")
    said: list[str] = []
    run = measured("ouro", "arithmetic", notify=said.append, **SHORT)
    assert len(said) == 1
    assert "out of memory with 2 questions" in said[0]
    assert run.records["row"].to_list() == whole.records["row"].to_list()
    torch.testing.assert_close(run.records["gain"].to_torch(), whole.records["gain"].to_torch(), rtol=1e-4, atol=1e-6)
