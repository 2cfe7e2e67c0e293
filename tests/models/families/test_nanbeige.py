"""Nanbeige against the published implementation's outputs; every trap of the family tells itself apart there."""

from __future__ import annotations

import json

import pytest
import torch

from loopscope.errors import LoopscopeError
from loopscope.models.batch import Batch
from loopscope.models.families.nanbeige import OTHER_FUNCTIONS, Nanbeige
from loopscope.models.layers import rope
from loopscope.models.layers.attention import KeyValueCache
from loopscope.models.load import load_model
from loopscope.models.protocol import LoopedModel
from loopscope.models.walk import Walk


@pytest.fixture(scope="module")
def model(golden_folder):
    return load_model(golden_folder("nanbeige"))


@pytest.mark.parametrize("case", ["plain", "rightpad", "leftpad"])
def test_states_and_logits_of_the_published_code(reference, distance, model, case):
    expected = reference("nanbeige", case)
    assert distance(model, expected) < 1
    if case == "plain":
        assert torch.equal(model.embed(Batch.of(expected.input_ids)).state, expected.s0)


def test_norm_outside_the_loop(reference, distance, golden_variant):
    model = load_model(golden_variant("nanbeige", skip_loop_final_norm=True))
    assert distance(model, reference("nanbeige", "plain_skip_flipped")) < 1
    assert model.head is None
    assert model.boundary == "the shared stack's raw output, before the norm and the language-model head"
    state = model.states(Batch.from_rows([[1, 2, 3], [4, 5]]), [2])[2]
    halves, at = model.body_and_head(torch.float64), torch.tensor([[1, 1], [0, 2]])
    assert torch.equal(halves(state, at), model.readout(state, at, torch.float64))
    normed = state.double() * torch.rsqrt(state.double().square().mean(-1, keepdim=True) + 1e-5)
    logits = normed * model.model.norm.weight.double() @ model.lm_head.weight.double().T
    assert (model.readout(state, dtype=torch.float64) - logits).abs().max() < 1e-12


@pytest.mark.parametrize("case", ["plain", "plain_skip_flipped", "rightpad"])
def test_bfloat16_stays_within_its_rounding(reference, roundings, golden_variant, case):
    folder = golden_variant("nanbeige", skip_loop_final_norm="skip" in case)
    assert roundings(load_model(folder, dtype="bfloat16"), reference("nanbeige", case))


def test_every_loop_has_keys_of_its_own(model):
    cache, ids = KeyValueCache(3), torch.tensor([[1, 2, 3]])
    cache.used = 3
    with torch.no_grad():
        Walk(model, model.embed_cached(Batch(ids, torch.ones_like(ids), torch.arange(3)[None]), cache)).to(2)
    assert cache.slots() == [layer + loop * 3 for loop in range(2) for layer in range(3)]


def _rotated_in_pairs(x, tables, bias=None, impl=None):
    half = x.shape[-1] // 2
    cos, sin = (table[..., :half].repeat_interleave(2, -1) for table in (tables.cos, tables.sin))
    return rope.rotate(x, rope.RotaryTables(cos, sin, "interleaved"))


def _norm_only_at_the_end(model):
    step = Nanbeige.step

    def raw(state, context, depth=0):
        object.__setattr__(model.config, "norm_in_loop", False)
        try:
            return step(model, state, context, depth)
        finally:
            object.__setattr__(model.config, "norm_in_loop", True)

    readout = model.readout
    model.step = raw
    model.readout = lambda state, positions=None, dtype=None: readout(model.model.norm(state))
    return model


TRAPS = {
    "norm only after the last loop": lambda write, patch: _norm_only_at_the_end(load_model(write("nanbeige"))),
    "theta 10000": lambda write, patch: load_model(write("nanbeige", rope_theta=10000)),
    "pair rope": lambda write, patch: (
        patch.setattr("loopscope.models.layers.blocks.rotate_own", _rotated_in_pairs),
        load_model(write("nanbeige")),
    )[1],
    "tied head": lambda write, patch: load_model(
        write("nanbeige", lambda held: held | {"lm_head.weight": held["model.embed_tokens.weight"].clone()})
    ),
    "eps 1e-2": lambda write, patch: load_model(write("nanbeige", rms_norm_eps=1e-2)),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_the_published_outputs_tell_a_trap_apart(reference, distance, golden_variant, monkeypatch, trap):
    assert distance(TRAPS[trap](golden_variant, monkeypatch), reference("nanbeige", "plain")) > 100


def test_a_head_is_not_the_hidden_size_over_the_heads(golden_variant):
    with pytest.raises(LoopscopeError, match=r"'model.layers.0.self_attn.q_proj.weight' has shape"):
        load_model(golden_variant("nanbeige", head_dim=...))


@pytest.mark.parametrize("switch", OTHER_FUNCTIONS)
def test_switches_that_make_another_function_are_refused_by_name(golden_variant, switch):
    with pytest.raises(LoopscopeError, match=f"{switch} (True|2) is not supported"):
        load_model(golden_variant("nanbeige", **{switch: 2 if switch.startswith("emb") else True}))


@pytest.mark.parametrize("scaling", [{"type": "linear", "factor": 2.0}, {"type": "dynamic", "factor": 2.0}])
def test_scaled_positions_are_refused(golden_variant, scaling):
    with pytest.raises(LoopscopeError, match=r"rope_scaling is not supported|rope type 'dynamic' is not supported"):
        load_model(golden_variant("nanbeige", rope_scaling=scaling))


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_scaling": {"rope_theta": 70000000}},
        {"rope_scaling": {"rope_type": "default"}},
        {"rope_theta": ..., "rope_scaling": ..., "rope_parameters": {"rope_type": "default", "rope_theta": 7e7}},
    ],
)
def test_a_file_that_a_newer_library_saved_again(reference, distance, golden_variant, fields):
    assert distance(load_model(golden_variant("nanbeige", **fields)), reference("nanbeige", "plain")) < 1


@pytest.mark.parametrize(
    ("fields", "depth"),
    [({"num_loops": 5}, 5), ({"loop_loss_weights": [0.5, 0.5]}, 3), ({"loop_loss_weights": [1.0], "num_loops": 7}, 2)],
)
def test_listed_losses_are_stronger_than_the_number_of_loops(golden_variant, fields, depth):
    assert load_model(golden_variant("nanbeige", **fields)).trained_depth == depth


def test_it_is_a_looped_model(golden_folder, model):
    assert isinstance(model, LoopedModel)
    assert (model.family, model.hidden_size, model.vocabulary_size, model.trained_depth) == ("nanbeige", 48, 256, 2)
    assert (model.eos_ids, model.max_positions) == ((251,), 128)
    assert model.head.weight_VD is model.lm_head.weight
    drawn = load_model(golden_folder("nanbeige"), model_args={"random_weights": True})
    assert drawn.card.parameters == model.card.parameters == 100944
    assert json.loads((golden_folder("nanbeige") / "config.json").read_text())["tie_word_embeddings"] is False
