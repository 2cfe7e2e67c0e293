"""A run's log says how φ was computed, unit by unit, and nothing else in the run does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from loopscope.run import Run


@pytest.mark.parametrize("level", ["quick", "grid", "full"])
@pytest.mark.parametrize("task", ["arithmetic", "arithmetic-mc"])
def test_an_affine_readout_on_a_cpu_has_moments(task: str, level: str, measured: Callable[..., Run]) -> None:
    assert measured("ouro", task, level=level, limit=2).backends_used == ("moments",)


def test_another_readout_is_general(measured: Callable[..., Run]) -> None:
    assert measured("huginn", "arithmetic", limit=1, level="quick").backends_used == ("general",)


def test_every_unit_is_logged_once(measured: Callable[..., Run], contents: Callable[[Path], dict[str, bytes]]) -> None:
    run = measured("ouro", "arithmetic", limit=5, unit_size=2)
    logged = [event for event in run.events if event["event"] == "ways"]
    assert [event["unit"] for event in logged] == [0, 1, 2]
    assert all(set(event["names"]) == set(run.backends_used) for event in logged)
    assert not any(b"ways" in data for name, data in contents(run.path).items() if not name.endswith(".parquet"))


def test_no_update_no_way(measured: Callable[..., Run]) -> None:
    assert measured("ouro", "arithmetic", transitions=[], depths=[1, 2], limit=1).backends_used == ()
