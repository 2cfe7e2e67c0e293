"""A run's log says how φ was computed, unit by unit, and nothing else in the run does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loopscope.readout.affine import path as affine
from loopscope.readout.affine.choose import WAYS
from loopscope.run import Run


@pytest.mark.parametrize("level", ["quick", "grid", "full"])
@pytest.mark.parametrize("task", ["arithmetic", "arithmetic-mc"])
def test_ways_of_an_affine_readout_are_those_that_were_chosen(
    task: str, level: str, measured: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: set[str] = set()
    choose = affine.choose

    def noted(*arguments: Any, **options: Any) -> str:
        way = choose(*arguments, **options)
        chosen.add(way)
        return way

    monkeypatch.setattr(affine, "choose", noted)
    run = measured("ouro", task, level=level, limit=2)
    assert chosen <= set(WAYS)
    assert set(run.ways_taken) == chosen
    assert chosen


def test_another_readout_is_general(measured: Callable[..., Run]) -> None:
    assert measured("huginn", "arithmetic", limit=1, level="quick").ways_taken == ("general",)


def test_every_unit_is_logged_once(measured: Callable[..., Run], contents: Callable[[Path], dict[str, bytes]]) -> None:
    run = measured("ouro", "arithmetic", limit=5, unit_size=2)
    logged = [event for event in run.events if event["event"] == "ways"]
    assert [event["unit"] for event in logged] == [0, 1, 2]
    assert all(set(event["names"]) == set(run.ways_taken) for event in logged)
    assert not any(b"ways" in data for name, data in contents(run.path).items() if not name.endswith(".parquet"))


def test_no_update_no_way(measured: Callable[..., Run]) -> None:
    assert measured("ouro", "arithmetic", transitions=[], depths=[1, 2], limit=1).ways_taken == ()
