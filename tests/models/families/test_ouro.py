"""Ouro against the published implementation's outputs and against plain float64 loops at other sizes."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopscope.errors import LoopscopeError
from loopscope.models.batch import Batch
from loopscope.models.exit_gate import exit_distribution, state_at_exit, weighted_logits
from loopscope.models.families.ouro import Ouro, OuroConfig
from loopscope.models.layers.attention import KeyValueCache
from loopscope.models.protocol import LoopedModel

ATOL = 5e-5
CONFIG = json.loads((Path(__file__).resolve().parents[1] / "golden" / "ouro" / "config.json").read_text())
CASES = ["plain", "rightpad", "leftpad", "leftpad_pos"]


def batch_of(reference):
    return Batch(reference.input_ids, reference.attention_mask, reference.tensors.get("position_ids"))


def deviation(found, expected, mask):
    return (found - expected)[mask].abs().max().item()


@pytest.fixture(scope="module")
def model(golden_model):
    return golden_model("ouro")


@pytest.mark.parametrize("case", CASES)
def test_states_logits_and_gate_of_the_published_code(reference, model, case):
    expected = reference("ouro", case)
    states = model.states(batch_of(expected), range(1, 9))
    mask = expected.attention_mask
    for t, state in states.items():
        assert deviation(state, expected.hidden[t - 1], mask) < ATOL
        gate = model.gate_logits(state)
        assert deviation(gate, expected.gate_logits[t - 1], mask) < ATOL
        assert deviation(torch.sigmoid(gate), expected.gate_lambda[t - 1], mask) < ATOL
    for index, t in enumerate(expected.depths):
        assert deviation(model.readout(states[t]), expected.logits[index], mask) < ATOL


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_exits_of_the_published_code(reference, model, case, dtype):
    expected = reference("ouro", case)
    mask = expected.attention_mask
    states = list(model.states(batch_of(expected), range(1, 9)).values())
    logits = [model.readout(state) for state in states]
    for budget in (4, 8):
        gates = exit_distribution([model.gate_logits(state, dtype) for state in states[:budget]])
        assert deviation(gates.pdf, expected.tensors[f"exit_pdf_T{budget}"], mask) < ATOL
        assert deviation(gates.cdf, expected.tensors[f"exit_cdf_T{budget}"], mask) < ATOL
    gates = exit_distribution([model.gate_logits(state, dtype) for state in states[:4]])
    assert deviation(weighted_logits(logits[:4], gates.pdf), expected.logits_weighted_T4, mask) < ATOL
    for threshold in (0.3, 0.5, 0.7, 0.9):
        depth = gates.exit_depth(threshold)
        assert torch.equal(depth[mask] - 1, expected.tensors[f"exit_step0_thr{threshold}_T4"][mask])
        chosen = model.readout(state_at_exit(states[:4], depth))
        assert deviation(chosen, expected.tensors[f"logits_thr{threshold}_T4"], mask) < ATOL
    last = model.readout(state_at_exit(states[:4], gates.exit_depth(model.config.exit_threshold)))
    assert deviation(last, expected.logits_default_T4, mask) < ATOL


def test_kept_keys_and_values_of_the_published_code(reference, model):
    expected = reference("ouro", "cache")
    cache, logits = KeyValueCache(12), []
    with torch.no_grad():
        for start, stop in [(0, 8), (8, 9), (9, 10), (10, 11), (11, 12)]:
            ids = expected.input_ids[:, start:stop]
            cache.used = stop
            positions = torch.arange(start, stop)[None]
            context = model.embed_cached(Batch(ids, torch.ones_like(ids), positions), cache)
            state = context.state
            for depth in range(4):
                state = model.step(state, context, depth=depth)
            logits.append(model.readout_cached(state, context))
    assert (torch.cat(logits, dim=1) - expected.logits_T4).abs().max() < ATOL
    assert cache.slots() == list(range(12))
    for slot in cache.slots():
        keys, values = cache.read(slot)
        assert (keys - expected.tensors[f"key_{slot:02d}"]).abs().max() < ATOL
        assert (values - expected.tensors[f"value_{slot:02d}"]).abs().max() < ATOL


def test_bfloat16_rounds_as_the_published_code(reference, golden_model):
    expected = reference("ouro", "plain_bf16")
    model = golden_model("ouro", dtype=torch.bfloat16, prepare=False)
    if not torch.equal(model.readout(expected.hidden[0]), expected.logits[0]):
        pytest.skip("this machine's BF16 matrix product rounds differently")
    with torch.no_grad():
        context = model.embed(Batch.of(expected.input_ids))
        object.__setattr__(context.extra, "plain", True)  # the published code's own attention, not a fused one
        state = context.state
        for t in range(8):
            state = model.step(state, context)
            assert torch.equal(state, expected.hidden[t])
            assert torch.equal(model.gate_logits(state), expected.gate_logits[t])


def plain_ouro(plain, model, ids, loops):
    """States 1..loops of one unpadded sequence, straight from the equations."""
    config, w = model.config, plain.weights(model)
    heads, shared, width = config.heads, config.key_value_heads, config.head_width
    frequencies, pairs = plain.frequencies(width, config.rotary.theta), plain.half_pairs(width)
    x = w["model.embed_tokens.weight"][ids]
    states = []
    for _ in range(loops):
        for i in range(config.layers):
            at = f"model.layers.{i}."

            def norm(x, name, at=at):
                return plain.rms_norm(x, w[at + name + ".weight"], config.norm_eps)

            def project(x, name, count, at=at):
                return (x @ w[at + f"self_attn.{name}_proj.weight"].T).reshape(len(ids), count, width)

            y = norm(x, "input_layernorm")
            q = plain.rotate(project(y, "q", heads), frequencies, pairs)
            k = plain.rotate(project(y, "k", shared), frequencies, pairs)
            mixed = plain.attention(q, k, project(y, "v", shared)) @ w[at + "self_attn.o_proj.weight"].T
            x = x + norm(mixed, "input_layernorm_2")
            y = norm(x, "post_attention_layernorm")
            gated = plain.silu(y @ w[at + "mlp.gate_proj.weight"].T) * (y @ w[at + "mlp.up_proj.weight"].T)
            x = x + norm(gated @ w[at + "mlp.down_proj.weight"].T, "post_attention_layernorm_2")
        x = plain.rms_norm(x, w["model.norm.weight"], config.norm_eps)
        states.append(x)
    return states


@pytest.mark.parametrize(
    "changes",
    [
        {"num_key_value_heads": 2},
        {"num_key_value_heads": 1, "head_dim": 10},
        {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 24, "hidden_size": 40},
        {
            "tie_word_embeddings": True,
            "num_hidden_layers": 1,
            "layer_types": None,
            "intermediate_size": 50,
            "vocab_size": 97,
        },
    ],
)
@pytest.mark.parametrize("prepared", [False, True])
def test_other_sizes_against_plain_loops(plain, randomise, changes, prepared):
    model = randomise(Ouro(OuroConfig.from_json(CONFIG | changes)), seed=5)
    if prepared:
        model.prepare()
    rows = [[5, 9, 1, 60, 33, 2], [7, 8, 8]]
    states = model.states(Batch.from_rows(rows), [1, 2, 5])
    head = plain.weights(model)["lm_head.weight"]
    for row, ids in enumerate(rows):
        expected = plain_ouro(plain, model, ids, 5)
        for t, state in states.items():
            assert np.abs(state[row, : len(ids)].numpy() - expected[t - 1]).max() < ATOL
            with torch.no_grad():
                logits = model.readout(state)[row, : len(ids)].numpy()
            assert np.abs(logits - expected[t - 1] @ head.T).max() < ATOL


@pytest.mark.parametrize("padding", ["right", "left"])
def test_padding_and_company_do_not_change_a_row(model, padding):
    generator = torch.Generator().manual_seed(4)
    rows = [torch.randint(0, 256, (length,), generator=generator).tolist() for length in (39, 3, 11, 1)]
    together = Batch.from_rows(rows, padding=padding)
    states = model.states(together, [1, 4, 12])
    for index, row in enumerate(rows):
        alone, valid = model.states(Batch.from_rows([row]), [1, 4, 12]), together.attention_mask[index]
        for t in (1, 4, 12):
            assert (states[t][index][valid] - alone[t][0]).abs().max() <= 1e-5
            logits = model.readout(states[t])[index][valid]
            assert (logits - model.readout(alone[t])[0]).abs().max() <= 1e-5


def test_only_the_depths_asked_for_are_kept(model):
    batch = Batch.from_rows([[1, 2, 3]])
    states = model.states(batch, [6, 0, 2])
    assert list(states) == [0, 2, 6]
    assert torch.equal(states[0], model.embed(batch).state)


def test_a_given_state_replaces_the_embedding(model):
    ids = torch.tensor([[1, 2, 3]])
    states = model.states(Batch.of(ids), [1, 3])
    restarted = Batch(ids, torch.ones_like(ids), initial_state=states[1])
    assert torch.equal(model.states(restarted, [2])[2], states[3])


def test_the_head_is_affine(model):
    state = model.states(Batch.from_rows([[1, 2, 3]]), [1])[1]
    assert model.head.bias_V is None
    assert (model.readout(state) - state @ model.head.weight_VD.T).abs().max() < 1e-5


def test_readout_at_positions(model):
    state = model.states(Batch.from_rows([[1, 2, 3], [4, 5, 6]]), [1])[1]
    chosen = model.readout(state, torch.tensor([[1, 2], [0, 0]]), torch.float64)
    everything = model.readout(state, dtype=torch.float64)
    assert chosen.dtype == torch.float64
    assert torch.allclose(chosen, torch.stack([everything[1, 2], everything[0, 0]]), rtol=0, atol=1e-13)


def test_it_is_a_looped_model(model):
    assert isinstance(model, LoopedModel)
    assert (model.family, model.hidden_size, model.vocabulary_size, model.trained_depth) == ("ouro", 64, 256, 4)
    assert "before the language-model head" in model.boundary


def test_gradients_reach_every_parameter(golden_model):
    model = golden_model("ouro", prepare=False)
    model.requires_grad_(True)
    context = model.embed(Batch.from_rows([[1, 2, 3, 4], [5, 6]], padding="left"))
    state = model.step(model.step(context.state, context), context)
    (model.readout(state).sum() + model.gate_logits(state).sum()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size must be a positive integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive integer"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3 key-value heads"),
        ({"head_dim": None, "hidden_size": 66}, "66 does not divide into 4 heads"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"attention_bias": True}, "attention_bias True is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"use_sliding_window": True, "sliding_window": 128}, "sliding_window 128 is not supported"),
        ({"layer_types": ["full_attention"] * 2}, "one kind for each of the 3 layers"),
        ({"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, "'sliding_attention'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope type 'yarn' is not supported"),
        ({"total_ut_steps": True}, "total_ut_steps must be a positive integer"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings must be true or false"),
        ({"eos_token_id": "end"}, "eos_token_id must be a token id"),
        ({"eos_token_id": -1}, "eos_token_id -1 is outside the vocabulary"),
        ({"eos_token_id": [1, 10**9]}, "eos_token_id 1000000000 is outside the vocabulary"),
        ({"early_exit_threshold": 5.0}, "early_exit_threshold must be from 1e-30 to 1.0, not 5.0"),
        ({"early_exit_threshold": float("nan")}, "early_exit_threshold must be a positive number, not nan"),
        ({"rms_norm_eps": 3.0}, "rms_norm_eps must be from 1e-30 to 1.0, not 3.0"),
        ({"rms_norm_eps": 1e-300}, "rms_norm_eps must be from 1e-30 to 1.0, not 1e-300"),
        ({"rope_theta": 10**400}, "rope_theta must be from 1e-30 to 1e\\+30"),
        ({"total_ut_steps": 10**12}, "total_ut_steps must be at most 1000000, not 1000000000000"),
        ({"max_position_embeddings": 2**40}, "max_position_embeddings must be at most 2147483647"),
    ],
)
def test_a_bad_configuration_gets_one_line(changes, message):
    with pytest.raises(LoopscopeError, match=message) as refused:
        OuroConfig.from_json(CONFIG | changes)
    assert "\n" not in str(refused.value)


def test_a_window_that_is_switched_off_is_accepted():
    assert OuroConfig.from_json(CONFIG | {"sliding_window": 128, "use_sliding_window": False}).layers == 3


def test_a_foreign_token_id_gets_one_line(model):
    with pytest.raises(LoopscopeError, match="token id 256 is outside ouro's vocabulary of 256"):
        model.embed(Batch.from_rows([[256]]))


def test_too_long_a_text_gets_one_line(model):
    with pytest.raises(LoopscopeError, match="513 tokens are more than ouro's 512 positions"):
        model.embed(Batch.of(torch.zeros(1, 513, dtype=torch.int64)))


def test_the_exit_threshold_is_the_checkpoints_own():
    assert Ouro(OuroConfig.from_json(CONFIG | {"early_exit_threshold": 0.7})).exit_gate.threshold == 0.7


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-6, 6), min_size=1, max_size=8), st.floats(0.01, 1.0))
def test_definition_in_exact_arithmetic(logits, threshold):
    gates = exit_distribution([torch.tensor([value], dtype=torch.float64) for value in logits])
    stop = [Fraction(float(value)) for value in gates.stop[0]]
    pdf, remaining = [], Fraction(1)
    for chance in stop[:-1]:
        pdf.append(chance * remaining)
        remaining *= 1 - chance
    pdf.append(remaining)
    assert float(sum(pdf)) == 1.0
    for t, chance in enumerate(pdf):
        assert float(gates.pdf[0, t]) == pytest.approx(float(chance), rel=1e-12, abs=1e-300)
    cdf = [sum(pdf[: t + 1]) for t in range(len(pdf))]
    if all(abs(float(value) - threshold) > 1e-12 for value in cdf):
        expected = next((t + 1 for t, value in enumerate(cdf) if value >= threshold), len(cdf))
        assert int(gates.exit_depth(threshold)) == expected


def test_a_threshold_above_one_is_the_last_loop():
    gates = exit_distribution([torch.full((2, 3), 4.0)] * 5)
    assert (gates.exit_depth(1.5) == 5).all()


def test_bfloat16_can_reach_one_before_the_last_loop_where_float64_does_not():
    logits = [torch.full((1,), value, dtype=torch.bfloat16) for value in (3.0, 3.0, 3.0, 3.0)]
    low = exit_distribution(logits)
    high = exit_distribution([value.double() for value in logits])
    assert low.cdf.dtype == torch.bfloat16
    assert int(low.exit_depth(1.0)) < 4
    assert int(high.exit_depth(1.0)) == 4


def test_each_position_takes_the_state_of_its_own_depth():
    states = [torch.full((2, 3, 4), float(t)) for t in (1, 2, 3)]
    depth = torch.tensor([[1, 2, 3], [3, 3, 1]])
    assert torch.equal(state_at_exit(states, depth)[..., 0], depth.float())


def test_weighted_logits_mix_by_the_pdf():
    logits = [torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 1.0]]])]
    gates = exit_distribution([torch.zeros(1, 1), torch.zeros(1, 1)])
    assert weighted_logits(logits, gates.pdf).tolist() == [[[0.5, 0.5]]]


def test_no_depth_is_refused():
    with pytest.raises(LoopscopeError, match="one depth at least"):
        exit_distribution([])
