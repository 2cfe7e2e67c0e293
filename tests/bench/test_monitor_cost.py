"""The rows on a monitor's cost run, and their numbers belong together."""

from __future__ import annotations

import pytest
import torch

from loopscope.bench.monitor_cost import FORWARD, rows
from loopscope.bench.row import Setting
from loopscope.bench.sizes import sizes_for
from loopscope.monitor.watch import EVERY


def test_the_rows_hold_a_call_against_a_forward_pass_and_the_training(monkeypatch):
    monkeypatch.setattr("loopscope.bench.monitor_cost.MODELS", ("toy-ouro",))
    (row,) = rows(Setting(torch.device("cpu"), sizes_for("cpu", quick=True)))
    forward, share, kept = row.goals
    assert row.size["questions"] == 2
    assert forward.measured == pytest.approx(row.measured.value / row.references[0].measured.value)
    assert row.references[0].name == FORWARD
    assert share.measured == pytest.approx(row.measured.value / (EVERY * row.figures["seconds_of_a_training_step"]))
    assert kept.measured <= 0.0
    assert [goal.met for goal in row.goals] == [None] * 3
