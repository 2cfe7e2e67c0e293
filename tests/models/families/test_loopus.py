"""LoopUS against the published implementation's outputs; every trap of the family tells itself apart there."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from torch.nn import functional

from loopscope.errors import LoopscopeError
from loopscope.models.batch import Batch
from loopscope.models.exit_gate import exit_gate_of
from loopscope.models.families.loopus import LoopUS, UpdateGate
from loopscope.models.layers.blocks import SeparateAttention
from loopscope.models.load import load_model
from loopscope.models.protocol import LoopedModel


@pytest.fixture(scope="module")
def model(golden_folder):
    return load_model(golden_folder("loopus"))


@pytest.mark.parametrize("case", ["plain", "rightpad"])
def test_states_logits_and_confidence_of_the_published_code(reference, distance, model, case):
    expected = reference("loopus", case)
    assert distance(model, expected) < 1
    states = model.states(Batch(expected.input_ids, expected.attention_mask), range(1, 7))
    # The published code reads the last column, which is the end of the text only in rows without padding.
    whole = expected.attention_mask[:, -1]
    for t, state in states.items():
        confidence = torch.sigmoid(model.exit_gate.logits(state, None))[:, -1]
        assert (confidence - expected.q[t - 1])[whole].abs().max() < 1e-5
        assert (model.exit_gate.logits(state, torch.float64) - model.gate_logits(state)).abs().max() < 1e-5


def test_the_exit_is_the_first_step_above_the_threshold(reference, model):
    expected, gate = reference("loopus", "plain"), exit_gate_of(model)
    assert (gate.threshold, gate.budget, gate.rule) == (0.9, 4, "threshold")
    states = model.states(Batch.of(expected.input_ids), range(1, 5)).values()
    compared = gate.compared([gate.logits(state, None) for state in states])
    assert np.allclose(compared[0, -1], expected.q[:4, 0], atol=1e-5)
    for threshold in (0.5, 0.6, 0.65, 0.7, 0.75, 0.9):
        above = [t for t in range(1, 5) if expected.q[t - 1, 0] > threshold]
        assert gate.exit_depth(compared, threshold)[0, -1] == (above[0] if above else 4)
    # Exactly at the threshold the loop goes on, unlike under a CDF.
    assert gate.exit_depth(torch.tensor([[0.9, 0.91]])).tolist() == [2]


@pytest.mark.parametrize("case", ["plain", "rightpad"])
def test_bfloat16_stays_within_its_rounding(reference, roundings, golden_folder, case):
    model = load_model(golden_folder("loopus"), dtype="bfloat16")
    assert roundings(model, reference("loopus", case))


def test_bfloat16_keeps_the_gate_in_float32(golden_folder):
    model = load_model(golden_folder("loopus"), dtype="bfloat16")
    kept = {name for name, held in model.named_parameters() if held.dtype == torch.float32}
    assert kept == {name for name, _ in model.named_parameters() if name.startswith(("reasoning.gate.", "q_head."))}
    assert len(kept) == 8
    state = model.states(Batch.from_rows([[1, 2, 3]]), [1])[1]
    assert (state.dtype, model.gate_logits(state).dtype) == (torch.bfloat16, torch.float32)
    assert load_model(golden_folder("loopus"), dtype="float64").reasoning.gate.A_log.dtype == torch.float64


def _mixed(weight, after, before):
    return weight * after + (1 - weight) * before


def _kept(gate, change):
    return torch.exp(-functional.softplus(gate.delta_proj(gate.dt_input_proj(change))) * torch.exp(gate.A_log))


def _first_state_as_the_other_side(self, state, context, depth=0):
    from loopscope.models.layers.blocks import run_blocks

    after = run_blocks(state, self.reasoning.layers, context.extra, range(2)).state
    gate = self.reasoning.gate
    return _mixed(_kept(gate, after - state), after, context.state)


class _NoDecoder:
    def __init__(self, decoder):
        self.layers, self.norm, self.lm_head = [], decoder.norm, decoder.lm_head


def _no_head_norms(attention, x, around, slot, queries):
    q, k, v = (attention._heads(layer(x)) for layer in (attention.q_proj, attention.k_proj, attention.v_proj))
    from loopscope.models.layers.attention import attend
    from loopscope.models.layers.rope import rotate

    return attend(rotate(q, around.rotary), rotate(k, around.rotary), v, around, slot)


TRAPS = {
    "gate skipped": {(UpdateGate, "forward"): lambda gate, before, after: after},
    "sides swapped": {
        (UpdateGate, "forward"): lambda gate, before, after: _mixed(_kept(gate, after - before), before, after)
    },
    "gate from y": {(UpdateGate, "forward"): lambda gate, before, after: _mixed(_kept(gate, after), after, before)},
    "encoder output as the other side": {(LoopUS, "step"): _first_state_as_the_other_side},
    "q/k norm missing": {(SeparateAttention, "mixed"): _no_head_norms},
    "decoder layers skipped": {(LoopUS, "_decoder"): lambda model, dtype: _NoDecoder(model.decoder)},
}


@pytest.mark.parametrize("trap", TRAPS)
def test_the_published_outputs_tell_a_trap_apart(reference, distance, model, monkeypatch, trap):
    for (owner, name), other in TRAPS[trap].items():
        monkeypatch.setattr(owner, name, other)
    if trap == "decoder layers skipped":
        monkeypatch.setattr(model, "config", dataclasses.replace(model.config, decoder_layers=0))
    assert distance(model, reference("loopus", "plain")) > 100


def test_a_tied_head_is_told_apart(reference, distance, golden_variant):
    def tied(tensors):
        return tensors | {"decoder.lm_head.weight": tensors["encoder.embed_tokens.weight"].clone()}

    assert distance(load_model(golden_variant("loopus", tied)), reference("loopus", "plain")) > 100


def test_older_names_of_the_looped_layers(reference, distance, golden_variant):
    def older(tensors):
        return {name.replace("reasoning.", "plateau."): value for name, value in tensors.items()}

    assert distance(load_model(golden_variant("loopus", older)), reference("loopus", "plain")) < 1


@pytest.mark.parametrize(
    "fields", [{"halting_strategy": "cdf"}, {"halting_strategy": "convergence"}, {"q_eval_interval": 2}]
)
def test_exits_that_are_not_certain_are_refused_or_left_out(golden_variant, fields):
    folder = golden_variant("loopus", **fields)
    with pytest.raises(LoopscopeError, match=f"{next(iter(fields))} .* is not supported, only .*; choose exit=none"):
        load_model(folder)
    assert exit_gate_of(load_model(folder, model_args="exit=none")) is None
    assert exit_gate_of(load_model(folder, model_args="exit=threshold")).threshold == 0.9


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"reasoning_layer_indices": []}, "names no layer to loop"),
        ({"encoder_layer_indices": [0, 1]}, "reasoning_layer_indices names a layer twice"),
        ({"decoder_layer_indices": [9]}, "decoder_layer_indices must be a list of layers from 0 to 3"),
        ({"decoder_layer_indices": None}, "decoder_layer_indices must be a list"),
        ({"base_config_dict": None}, "base_config_dict is missing"),
        ({"N": 0}, "N must be a positive integer"),
    ],
)
def test_contradictory_configurations_are_one_line(golden_variant, fields, said):
    with pytest.raises(LoopscopeError, match=said):
        load_model(golden_variant("loopus", **fields))


def test_another_base_model_is_refused_by_name(golden_folder, golden_variant):
    base = json.loads((golden_folder("loopus") / "config.json").read_text())["base_config_dict"]
    with pytest.raises(LoopscopeError, match="model_type 'llama' is not supported"):
        load_model(golden_variant("loopus", base_config_dict=base | {"model_type": "llama"}))


def test_padding_on_the_left_is_refused(model):
    with pytest.raises(LoopscopeError, match="padding on the right"):
        model.embed(Batch.from_rows([[1, 2, 3], [4]], padding="left"))


def test_it_is_a_looped_model(golden_folder, model):
    assert isinstance(model, LoopedModel)
    assert (model.family, model.hidden_size, model.vocabulary_size, model.trained_depth) == ("loopus", 48, 256, 4)
    assert model.head is None
    assert model.card.parameters == 117825
    state = model.states(Batch.from_rows([[1, 2, 3], [4, 5]]), [2])[2]
    at = torch.tensor([[1, 1], [0, 2]])
    chosen = model.readout(state, at, torch.float64)
    assert torch.allclose(chosen, model.readout(state, dtype=torch.float64)[at[:, 0], at[:, 1]], rtol=0, atol=1e-12)
    assert (
        load_model(golden_folder("loopus"), model_args={"random_weights": True})
        .states(Batch.from_rows([[1, 2]]), [4])[4]
        .isfinite()
        .all()
    )
