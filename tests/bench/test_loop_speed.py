"""Loops at the test's size: the bare stacks compute what the models compute."""

from __future__ import annotations

import pytest
import torch

from loopscope.bench.loop_speed import BARE, PLAIN, rows


@pytest.fixture(scope="module")
def found():
    from loopscope.bench.row import Setting
    from loopscope.bench.sizes import QUICK

    with torch.no_grad():
        return {row.name: row for row in rows(Setting(torch.device("cpu"), QUICK))}


@pytest.mark.parametrize(("name", "loops"), [("loops", 5), ("loops:nanbeige", 2), ("loops:parcae", 8)])
def test_a_model_agrees_with_its_bare_stack_to_bf16_rounding(found, name, loops):
    row = found[name]
    assert 0.0 < row.figures["relative_difference_one_loop"] < 0.02
    assert 0.0 < row.figures[f"relative_difference_{loops}_loops"] < 0.1
    assert row.figures["kernels"] == 0.0
    assert {reference.name for reference in row.references} == {BARE, PLAIN}
    assert row.goals[0].met is None


def test_huginn_gives_finite_states_and_logits(found):
    assert found["loops:huginn"].figures["finite"] == 1.0
    assert found["loops:huginn"].size["steps"] == 20
    assert found["loops:huginn-readout"].size["tokens"] == 32
