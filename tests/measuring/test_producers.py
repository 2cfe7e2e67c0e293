"""Every stored column has one producer, and a new one takes its declaration and a producer."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from loopscope.measuring import batch_pass
from loopscope.measuring.batch_pass import PRODUCERS, MeasuredUpdate, produces
from loopscope.store import StoredRun
from loopscope.store.schema import TABLES, Column

OF_THE_UNIT = {"task", "split", "row", "transition"}
"""Written by the pass and the store."""
OF_A_MONITOR = {("questions", "quarter_gain"), ("questions", "quadratic_gain")}
"""Level quick computes them for a monitor alone."""


def test_every_column_of_an_update_or_a_depth_has_one_producer() -> None:
    made = [(each.table, name) for each in PRODUCERS for name in each.columns]
    counted = Counter(made)
    assert {entry for entry, count in counted.items() if count > 1} == {("questions", "quadratic_gain")} < OF_A_MONITOR
    tables = set(TABLES) - {"examples", "trace"}
    declared = {(table, name) for table in tables for name in TABLES[table].names if name not in OF_THE_UNIT}
    assert {entry for entry in made if entry[1] != "row"} - OF_A_MONITOR == declared - OF_A_MONITOR


def test_a_new_column_is_declared_and_produced(monkeypatch: pytest.MonkeyPatch, measured: Callable[..., Any]) -> None:
    questions = TABLES["questions"]
    trial = Column("half_gain", "float64", "nats", "φ(1/2)")
    monkeypatch.setitem(TABLES, "questions", dataclasses.replace(questions, columns=(*questions.columns, trial)))
    monkeypatch.setattr(batch_pass, "PRODUCERS", list(PRODUCERS))

    @produces("questions", "half_gain")
    def _half(update: MeasuredUpdate) -> list[Any]:
        return [update.paths.questions.at_scales([0.5], 0)[0, :, 0]]

    run: StoredRun = measured("ouro", "arithmetic", limit=2)
    half = np.array(run.records["grid_gain"].to_list())[:, 10]
    np.testing.assert_allclose(run.records["half_gain"].to_numpy(), half, rtol=1e-12)
