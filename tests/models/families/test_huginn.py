"""Huginn against the published implementation's outputs and against plain float64 loops at other sizes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from loopscope.errors import LoopscopeError
from loopscope.models.batch import Batch
from loopscope.models.families.huginn import Huginn, HuginnConfig
from loopscope.models.layers.attention import KeyValueCache, counted_surroundings

ATOL = 5e-5
CONFIG = json.loads((Path(__file__).resolve().parents[1] / "golden" / "huginn" / "config.json").read_text())


def batch_of(reference):
    return Batch(reference.input_ids, reference.attention_mask, initial_state=reference.s0)


def deviation(found, expected, mask):
    return (found - expected)[mask].abs().max().item()


@pytest.fixture(scope="module")
def model(golden_model):
    return golden_model("huginn")


@pytest.mark.parametrize("case", ["plain", "rightpad"])
@pytest.mark.parametrize("differentiable", [False, True])
def test_states_and_logits_of_the_published_code(reference, model, case, differentiable):
    expected = reference("huginn", case)
    mask, batch = expected.attention_mask, batch_of(expected)
    states = model.states(batch, range(9))
    assert deviation(model.embed(batch).injection, expected.prelude_out, mask) < ATOL
    for t in range(1, 9):
        assert deviation(states[t], expected.raw[t - 1], mask) < ATOL
    around = counted_surroundings(states[1].shape[1], model.device, model.config.rotary, model.dtype, plain=False)
    with torch.set_grad_enabled(differentiable):
        assert deviation(model.readout(states[0]), expected.logits_depth0, mask) < ATOL
        for index, t in enumerate(expected.depths):
            assert deviation(model.readout(states[t]), expected.logits[index], mask) < ATOL
            assert deviation(model.transformer["ln_f"](states[t]), expected.latent_lnf[index], mask) < ATOL
            assert deviation(model.head_hidden(states[t], None, around), expected.head_hidden[index], mask) < ATOL


def test_unmasked_padding_is_text_as_in_the_published_code(reference, model):
    expected = reference("huginn", "leftpad")
    everything = torch.ones_like(expected.attention_mask)
    states = model.states(Batch(expected.input_ids, everything, initial_state=expected.s0), range(1, 9))
    for t, state in states.items():
        assert deviation(state, expected.raw[t - 1], everything) < ATOL
    for index, t in enumerate(expected.depths):
        assert deviation(model.readout(states[t]), expected.logits[index], everything) < ATOL


def test_kept_keys_and_values_of_the_published_code(reference, model):
    expected = reference("huginn", "cache")
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
    assert cache.slots() == list(range(-2, 14))
    for slot in cache.slots():
        keys, values = cache.read(slot)
        assert (keys - expected.tensors[f"key_{slot}"]).abs().max() < ATOL
        assert (values - expected.tensors[f"value_{slot}"]).abs().max() < ATOL


def test_bfloat16_rounds_as_the_published_code(reference, golden_model):
    expected = reference("huginn", "plain_bf16").tensors
    model = golden_model("huginn", dtype=torch.bfloat16)
    ids = expected["input_ids"]
    states = model.states(Batch(ids, torch.ones_like(ids), initial_state=expected["s0"]), range(1, 9))
    with torch.no_grad():
        for t, state in states.items():
            # One unit in the last place of the normed state is 2^-6 at its largest entries (below 4).
            assert (model.transformer["ln_f"](state) - expected[f"latent_lnf_{t}"]).abs().max() <= 2**-6
            assert (model.readout(state).float() - expected[f"logits_{t}"]).abs().max() < 0.05


def plain_huginn(plain, model, ids, initial, loops):
    """Raw states 1..loops and logits of one unpadded sequence, straight from the equations."""
    config, w = model.config, plain.weights(model)
    heads, width = config.heads, config.head_width
    frequencies, pairs = plain.frequencies(width, config.rotary.theta), plain.adjacent_pairs(width)
    count = len(ids)

    def block(x, at):
        def norm(x, name):
            return plain.rms_norm(x, w[f"{at}.{name}.weight"], config.norm_eps)

        y = norm(x, "norm_1")
        q, k, v = (part.reshape(count, heads, width) for part in np.split(y @ w[f"{at}.attn.Wqkv.weight"].T, 3, 1))
        bias = w.get(f"{at}.attn.qk_bias", np.zeros((2, 1, 1, 1)))
        q = plain.rotate(q + bias[0], frequencies, pairs)
        k = plain.rotate(k + bias[1], frequencies, pairs)
        x = norm(plain.attention(q, k, v) @ w[f"{at}.attn.proj.weight"].T + x, "norm_2")
        gate, up = np.split(norm(x, "norm_3") @ w[f"{at}.mlp.fc.weight"].T, 2, 1)
        return norm((plain.silu(gate) * up) @ w[f"{at}.mlp.proj.weight"].T + x, "norm_4")

    def final_norm(x):
        return plain.rms_norm(x, w["transformer.ln_f.weight"], config.norm_eps)

    e = w["transformer.wte.weight"][ids] * config.embed_scale
    for i in range(config.prelude_layers):
        e = block(e, f"transformer.prelude.{i}")
    s, states, logits = initial, [], []
    for _ in range(loops):
        s = np.concatenate([s, e], axis=1) @ w["transformer.adapter.weight"].T
        for i in range(config.core_layers):
            s = block(s, f"transformer.core_block.{i}")
        y = final_norm(s)
        for i in range(config.coda_layers):
            y = block(y, f"transformer.coda.{i}")
        states.append(s)
        logits.append(final_norm(y) @ w["lm_head.weight"].T)
    return states, logits


@pytest.mark.parametrize(
    "changes",
    [
        {"n_heads": 8, "num_key_value_heads": 8, "head_dim": 8},
        {"n_heads": 3, "num_key_value_heads": 3, "head_dim": 10},
        {"qk_bias": False, "n_layers_in_prelude": 1, "n_layers_in_coda": 0, "n_layers": 4},
        {"tie_embeddings": False, "vocab_size": 90, "padded_vocab_size": 128, "eos_token_id": 127},
    ],
)
def test_other_sizes_against_plain_loops(plain, randomise, changes):
    model = randomise(Huginn(HuginnConfig.from_json(CONFIG | changes)), seed=5)
    model.prepare()
    rows, sources = [[5, 9, 1, 60, 33, 2], [7, 8, 8]], [40, 41]
    batch = Batch.from_rows(rows, source_rows=sources)
    states = model.states(batch, [0, 1, 2, 5])
    for row, ids in enumerate(rows):
        initial = states[0][row, : len(ids)].double().numpy()
        expected, logits = plain_huginn(plain, model, ids, initial, 5)
        for t in (1, 2, 5):
            assert np.abs(states[t][row, : len(ids)].numpy() - expected[t - 1]).max() < ATOL
            found = model.readout(states[t], dtype=torch.float32)[row, : len(ids)].numpy()
            assert np.abs(found - logits[t - 1]).max() < ATOL


def test_padding_and_company_do_not_change_a_row(model):
    generator = torch.Generator().manual_seed(4)
    rows = [torch.randint(0, 256, (length,), generator=generator).tolist() for length in (19, 3, 11, 1)]
    together = Batch.from_rows(rows, source_rows=[8, 2, 8, 5])
    states = model.states(together, [1, 6])
    for index, row in enumerate(rows):
        alone = model.states(Batch.from_rows([row], source_rows=[[8, 2, 8, 5][index]]), [1, 6])
        for t in (1, 6):
            assert (states[t][index, : len(row)] - alone[t][0]).abs().max() <= 1e-5
            assert (model.readout(states[t])[index, : len(row)] - model.readout(alone[t])[0]).abs().max() <= 1e-5


def test_options_of_a_question_share_the_state_of_their_common_positions(model):
    batch = Batch.from_rows([[1, 2, 3, 4, 5], [1, 2, 9], [1, 2, 9]], source_rows=[11, 11, 12])
    initial = model.embed(batch).state
    assert torch.equal(initial[0, :3], initial[1, :3])
    assert not torch.equal(initial[1, :3], initial[2, :3])
    later = model.states(batch, [4])[4]
    assert (later[0, :2] - later[1, :2]).abs().max() < 1e-5


def test_left_padding_gets_one_line(model):
    with pytest.raises(LoopscopeError, match="pad on the right"):
        model.embed(Batch.from_rows([[1, 2, 3], [4]], padding="left"))


def test_position_ids_get_one_line(model):
    ids = torch.tensor([[1, 2]])
    with pytest.raises(LoopscopeError, match="leave position_ids out"):
        model.embed(Batch(ids, torch.ones_like(ids), torch.tensor([[3, 4]])))


def test_readout_at_positions_in_float64(model):
    state = model.states(Batch.from_rows([[1, 2, 3], [4, 5, 6]]), [2])[2]
    chosen = model.readout(state, torch.tensor([[1, 2], [0, 0]]), torch.float64)
    everything = model.readout(state, dtype=torch.float64)
    assert chosen.dtype == torch.float64
    assert torch.allclose(chosen, torch.stack([everything[1, 2], everything[0, 0]]), rtol=0, atol=1e-13)
    assert (everything - model.readout(state)).abs().max() < 1e-5


def test_what_follows_a_position_never_reaches_its_logits(model):
    state = model.states(Batch.from_rows([[1, 2, 3, 4]]), [2])[2]
    disturbed = state.clone()
    disturbed[:, 2:] += 10
    assert (model.readout(disturbed)[:, :2] - model.readout(state)[:, :2]).abs().max() < 1e-5


def test_the_tied_head_is_one_parameter(model):
    assert model.lm_head.weight is model.transformer["wte"].weight
    assert model.tied_tensors() == {"lm_head.weight": "transformer.wte.weight"}
    assert model.head is None


def test_gradients_reach_every_parameter(golden_model):
    model = golden_model("huginn", prepare=False).requires_grad_(True)
    context = model.embed(Batch.from_rows([[1, 2, 3, 4], [5, 6]]))
    model.readout(model.step(model.step(context.state, context), context)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_embd": None}, "n_embd is missing"),
        ({"n_layers": 9}, "n_layers 9 is not 2 \\+ 3 \\+ 2"),
        ({"padded_vocab_size": 200}, "padded_vocab_size 200 is smaller than vocab_size 256"),
        ({"num_key_value_heads": 2}, "qk_bias needs as many key-value heads"),
        ({"injection_type": "add"}, "injection_type 'add' is not supported"),
        ({"bias": True}, "bias True is not supported"),
        ({"state_init": "zero"}, "state_init 'zero' is not supported"),
        ({"init_values": {"std": -1}}, "std must be a positive number"),
    ],
)
def test_a_bad_configuration_gets_one_line(changes, message):
    with pytest.raises(LoopscopeError, match=message) as refused:
        HuginnConfig.from_json(CONFIG | changes)
    assert "\n" not in str(refused.value)


def test_the_state_has_the_published_width_when_the_file_does_not_say():
    config = HuginnConfig.from_json({key: value for key, value in CONFIG.items() if key != "init_values"})
    assert (config.state_std, config.embed_scale) == pytest.approx((0.07905694150420949, 8.0))
