"""Whole models through the kernels, against the plain code and against float64."""

from __future__ import annotations

import pytest
import torch

from loopscope.kernels.choice import implementation
from loopscope.models.batch import Batch
from loopscope.models.layers.blocks import gated_silu_joined
from loopscope.models.load import load_model
from loopscope.models.walk import Walk

ROWS = [[5, 9, 1, 60, 33, 2, 17], [7, 8, 30, 4]]


FAMILIES = ["ouro", "huginn", "retrofit_llama", "retrofit_olmo", "nanbeige", "hrm_text:attention=causal", "loopus"]


@pytest.mark.parametrize("family", FAMILIES)
def test_states_and_logits_of_a_model(interpreted, launches, golden_model, family):
    model, batch = golden_model(family, dtype=torch.bfloat16), Batch.from_rows(ROWS, source_rows=[1, 2])
    positions = torch.tensor([[1, 3], [0, 6], [0, 2]])
    found = model.states(batch, [1, 2])
    logits = model.readout(found[1], positions)
    assert {"_add_branch", "_gated_silu", "_rotate"} <= set(launches)
    with implementation("reference"):
        expected = model.states(batch, [1, 2])
        expected_logits = model.readout(found[1], positions)
        exact = golden_model(family, dtype=torch.float64).states(batch, [1, 2])
    for t, tolerance in ((1, 0.01), (2, 0.02)):
        ours, plain, right = (states[t][batch.attention_mask].double() for states in (found, expected, exact))
        assert (ours - plain).norm() <= tolerance * plain.norm()
        assert (ours - right).norm() <= 1.3 * (plain - right).norm()
    assert (logits - expected_logits).float().norm() <= 0.01 * expected_logits.float().norm()


def test_parcae_whose_readout_reads_the_tokens(interpreted, launches, golden_folder):
    model = load_model(golden_folder("parcae"), dtype="bfloat16")
    batch, positions = Batch.from_rows(ROWS, source_rows=[1, 2]), torch.tensor([[1, 3], [0, 6], [0, 2]])
    walk = Walk.of(model, batch).to(2)
    logits = walk.read(positions)
    assert set(launches) == {"_add_branch", "_rotate"}
    with implementation("reference"):
        expected = Walk.of(model, batch).to(2).state
        expected_logits = walk.read(positions)
    difference = (walk.state - expected)[batch.attention_mask].float().norm()
    assert difference <= 0.02 * expected[batch.attention_mask].float().norm()
    assert (logits - expected_logits).float().norm() <= 0.01 * expected_logits.float().norm()


def test_nothing_changes_outside_the_kernels_when_they_are_off(interpreted, launches):
    both = torch.zeros(2, 4, dtype=torch.bfloat16)
    with implementation("reference"):
        gated_silu_joined(both, plain=False)
    gated_silu_joined(both, plain=True)
    assert launches == []
