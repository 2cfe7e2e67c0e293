"""Retrofitted models against the published implementation's outputs and against plain float64 loops."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from loopscope.errors import LoopscopeError
from loopscope.models.batch import Batch
from loopscope.models.families.retrofit import RetrofitConfig, RetrofitLlama, RetrofitOlmo, variant_from_tensors
from loopscope.models.layers.attention import KeyValueCache, counted_surroundings

ATOL = 1e-4
GOLDEN = Path(__file__).resolve().parents[1] / "golden"
CONFIG = {kind: json.loads((GOLDEN / f"retrofit_{kind}" / "config.json").read_text()) for kind in ("llama", "olmo")}
KINDS = {"llama": RetrofitLlama, "olmo": RetrofitOlmo}


def deviation(found, expected, mask):
    return (found - expected)[mask].abs().max().item()


@pytest.mark.parametrize("kind", ["llama", "olmo"])
@pytest.mark.parametrize("case", ["plain", "rightpad", "plain_unit_state"])
@pytest.mark.parametrize("differentiable", [False, True])
def test_states_and_logits_of_the_published_code(reference, golden_model, kind, case, differentiable):
    expected = reference(f"retrofit_{kind}", case)
    model = golden_model(f"retrofit_{kind}")
    mask = expected.attention_mask
    batch = Batch(expected.input_ids, mask, initial_state=expected.s0)
    states = model.states(batch, range(9))
    assert deviation(model.embed(batch).injection, expected.prelude_out, mask) < ATOL
    for t in range(1, 9):
        assert deviation(states[t], expected.raw[t - 1], mask) < ATOL
    around = counted_surroundings(states[1].shape[1], model.device, model.config.rotary, model.dtype, plain=False)
    with torch.set_grad_enabled(differentiable):
        assert deviation(model.readout(states[0]), expected.logits_depth0, mask) < ATOL
        for index, t in enumerate(expected.depths):
            assert deviation(model.readout(states[t]), expected.logits[index], mask) < ATOL
            assert deviation(model.head_hidden(states[t], None, around), expected.head_hidden[index], mask) < ATOL


@pytest.mark.parametrize("kind", ["llama", "olmo"])
def test_unmasked_padding_is_text_as_in_the_published_code(reference, golden_model, kind):
    expected = reference(f"retrofit_{kind}", "leftpad")
    model = golden_model(f"retrofit_{kind}")
    everything = torch.ones_like(expected.attention_mask)
    states = model.states(Batch(expected.input_ids, everything, initial_state=expected.s0), range(1, 9))
    for t, state in states.items():
        assert deviation(state, expected.raw[t - 1], everything) < ATOL
    for index, t in enumerate(expected.depths):
        assert deviation(model.readout(states[t]), expected.logits[index], everything) < ATOL


@pytest.mark.parametrize("kind", ["llama", "olmo"])
def test_kept_keys_and_values_of_the_published_code(reference, golden_model, kind):
    expected = reference(f"retrofit_{kind}", "cache")
    model = golden_model(f"retrofit_{kind}")
    cache, logits = KeyValueCache(12), []
    with torch.no_grad():
        for start, stop in [(0, 8), (8, 9), (9, 10), (10, 11), (11, 12)]:
            ids, state = expected.input_ids[:, start:stop], expected.s0[:, start:stop]
            cache.used = stop
            positions = torch.arange(start, stop)[None]
            context = model.embed_cached(Batch(ids, torch.ones_like(ids), positions, initial_state=state), cache)
            state = context.state
            for depth in range(4):
                state = model.step(state, context, depth=depth)
            logits.append(model.readout_cached(state, context))
    assert (torch.cat(logits, dim=1) - expected.logits_T4).abs().max() < ATOL
    assert cache.slots() == list(range(-2, 10))
    for slot in cache.slots():
        keys, values = cache.read(slot)
        assert (keys - expected.tensors[f"key_{slot}"]).abs().max() < ATOL
        assert (values - expected.tensors[f"value_{slot}"]).abs().max() < ATOL


def plain_retrofit(plain, model, ids, initial, loops, olmo, frequencies):
    """Raw states 1..loops and logits of one unpadded sequence, straight from the equations."""
    config, w = model.config, plain.weights(model)
    heads, shared, width = config.heads, config.key_value_heads, config.head_width
    pairs, count = plain.half_pairs(width), len(ids)

    def norm(x, name):
        return plain.rms_norm(x, w[name + ".weight"], config.norm_eps)

    def attention(x, at):
        flat = x @ w[f"{at}.attn.Wqkv.weight"].T
        q, k, v = np.split(flat, [heads * width, (heads + shared) * width], axis=1)
        if olmo:
            q, k = norm(q, f"{at}.attn.q_norm"), norm(k, f"{at}.attn.k_norm")
        q = plain.rotate(q.reshape(count, heads, width), frequencies, pairs)
        k = plain.rotate(k.reshape(count, shared, width), frequencies, pairs)
        return plain.attention(q, k, v.reshape(count, shared, width)) @ w[f"{at}.attn.proj.weight"].T

    def feed_forward(x, at):
        gate, up = np.split(x @ w[f"{at}.mlp.fc.weight"].T, 2, 1)
        return (plain.silu(gate) * up) @ w[f"{at}.mlp.proj.weight"].T

    def block(x, at):
        if olmo:
            x = x + norm(attention(x, at), f"{at}.norm_1")
            return x + norm(feed_forward(x, at), f"{at}.norm_2")
        x = x + attention(norm(x, f"{at}.norm_1"), at)
        return x + feed_forward(norm(x, f"{at}.norm_2"), at)

    e = w["transformer.wte.weight"][ids] * config.embed_scale
    for i in range(config.prelude_layers):
        e = block(e, f"transformer.prelude.{i}")
    s, states, logits = initial, [], []
    for _ in range(loops):
        s = np.concatenate([s, e], axis=1) @ w["transformer.adapter.weight"].T
        for i in range(config.core_layers):
            s = block(s, f"transformer.core_block.{i}")
        y = s
        for i in range(config.coda_layers):
            y = block(y, f"transformer.coda.{i}")
        states.append(s)
        logits.append(norm(y, "transformer.ln_f") @ w["lm_head.weight"].T)
    return states, logits


@pytest.mark.parametrize("kind", ["llama", "olmo"])
@pytest.mark.parametrize(
    "changes",
    [
        {"n_heads": 6, "num_key_value_heads": 2, "head_dim": 12, "rope_theta": 700.0, "rope_base": 3.0},
        {"num_key_value_heads": 1, "n_layers_in_recurrent_block": 3, "n_layers_in_coda": 1, "tie_embeddings": True},
    ],
)
def test_other_sizes_against_plain_loops(plain, randomise, kind, changes):
    json = CONFIG[kind] | changes | {"rope_scaling": None}
    model = randomise(KINDS[kind](RetrofitConfig.from_json(json)), seed=5)
    model.prepare()
    rows = [[5, 9, 1, 60, 33, 2], [7, 8, 8]]
    batch = Batch.from_rows(rows, source_rows=[40, 41])
    states = model.states(batch, [0, 1, 4])
    frequencies = plain.frequencies(model.config.head_width, json["rope_theta"])
    for row, ids in enumerate(rows):
        initial = states[0][row, : len(ids)].double().numpy()
        expected, logits = plain_retrofit(plain, model, ids, initial, 4, kind == "olmo", frequencies)
        for t in (1, 4):
            assert np.abs(states[t][row, : len(ids)].numpy() - expected[t - 1]).max() < ATOL
            found = model.readout(states[t])[row, : len(ids)].numpy()
            assert np.abs(found - logits[t - 1]).max() < ATOL


@pytest.mark.parametrize("kind", ["llama", "olmo"])
def test_padding_and_company_do_not_change_a_row(golden_model, kind):
    model = golden_model(f"retrofit_{kind}")
    generator = torch.Generator().manual_seed(4)
    rows = [torch.randint(0, 256, (length,), generator=generator).tolist() for length in (13, 3, 1)]
    states = model.states(Batch.from_rows(rows), [1, 4])
    for index, row in enumerate(rows):
        alone = model.states(Batch.from_rows([row]), [1, 4])
        for t in (1, 4):
            assert (states[t][index, : len(row)] - alone[t][0]).abs().max() <= 1e-5


@pytest.mark.parametrize("kind", ["llama", "olmo"])
def test_the_state_is_drawn_with_the_inherited_std(golden_model, kind):
    model = golden_model(f"retrofit_{kind}")
    drawn = model.embed(Batch.of(torch.zeros(1, 500, dtype=torch.int64))).state
    assert float(drawn.std()) == pytest.approx(0.00859, rel=0.01)
    assert float(drawn.abs().max()) <= 3 * 0.008703882797784892 * 1.01


@pytest.mark.parametrize(
    ("folder", "variant"), [("huginn", "huginn"), ("retrofit_llama", "llama"), ("retrofit_olmo", "olmo")]
)
def test_the_tensors_tell_the_variants_apart(folder, variant):
    with safe_open(GOLDEN / folder / "model.safetensors", "pt") as tensors:
        assert variant_from_tensors(tensors.keys()) == variant


def test_foreign_tensors_get_one_line():
    with pytest.raises(LoopscopeError, match="no recurrent block"):
        variant_from_tensors(["model.layers.0.self_attn.q_proj.weight"])
    mixed = ["transformer.core_block.0.norm_3.weight", "transformer.core_block.0.attn.q_norm.weight"]
    with pytest.raises(LoopscopeError, match="mixes"):
        variant_from_tensors(mixed)


def test_configuration_stamped_again_by_another_tool_is_read():
    json = CONFIG["olmo"] | {"tie_word_embeddings": False, "dtype": "float32"}
    assert RetrofitConfig.from_json(json).trained_depth == 4


def test_huginns_token_ids_are_not_taken_over():
    assert RetrofitConfig.from_json(CONFIG["llama"]).eos_ids == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_theta": None}, "rope_theta is missing"),
        ({"init_values": None}, "init_values is missing"),
        ({"qk_bias": True}, "qk_bias True is not supported"),
        ({"num_key_value_heads": 3}, "cannot share 3 key-value heads"),
        ({"test_time_noise": 0.5}, "test_time_noise 0.5 is not supported"),
    ],
)
def test_a_bad_configuration_gets_one_line(changes, message):
    with pytest.raises(LoopscopeError, match=message) as refused:
        RetrofitConfig.from_json(CONFIG["llama"] | changes)
    assert "\n" not in str(refused.value)
