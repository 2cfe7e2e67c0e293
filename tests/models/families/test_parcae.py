"""Parcae against the published implementation's outputs; every trap of the family tells itself apart there."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from loopscope.errors import LoopscopeError
from loopscope.models.batch import Batch
from loopscope.models.families.parcae import Parcae
from loopscope.models.families.parcae_block import ParcaeAttention
from loopscope.models.families.recurrent_depth import RecurrentDepth
from loopscope.models.generate import Sampler, generate
from loopscope.models.layers.attention import KeyValueCache
from loopscope.models.layers.rope import RotaryTables, StoredRotary, rotate_own
from loopscope.models.load import load_model
from loopscope.models.protocol import LoopedModel
from loopscope.models.walk import Walk

DEPTHS = range(1, 7)


def off(found, expected, mask=...):
    """The largest difference, as a multiple of what is allowed: 1e-4, or 5e-6 of the largest entry."""
    return (found - expected)[mask].abs().max().item() / max(1e-4, 5e-6 * expected[mask].abs().max().item())


def batch_of(expected):
    return Batch(expected.input_ids, expected.attention_mask, initial_state=expected.s0)


def largest(model, expected):
    """The largest of `off` over states and logits at every depth."""
    mask, walk, found = expected.attention_mask, Walk.of(model, batch_of(expected)), []
    for t in DEPTHS:
        found += [off(walk.advance(), expected.raw[t - 1], mask), off(walk.read(), expected.logits[t - 1], mask)]
    return max(found)


@pytest.fixture(scope="module")
def model(golden_folder):
    return load_model(golden_folder("parcae"))


@pytest.mark.parametrize("differentiable", [False, True])
@pytest.mark.parametrize("case", ["plain", "plain_zero_state", "rightpad"])
def test_states_and_logits_of_the_published_code(reference, model, case, differentiable):
    expected = reference("parcae", case)
    with torch.set_grad_enabled(differentiable):
        assert largest(model, expected) < 1


def test_what_lies_between_in_the_published_code(reference, model):
    expected = reference("parcae", "plain")
    context = model.embed(batch_of(expected))
    assert torch.equal(context.state, expected.s0)
    assert off(model.embedded(context.batch, context.extra), expected.prelude_out) < 1
    states = [expected.s0, *expected.raw]
    for t in DEPTHS:
        assert off(model.joined(states[t - 1], context.injection), expected.injected[t - 1]) < 1
        hidden = model.body_and_head(None, context).body(states[t], None)
        assert off(hidden, expected.head_hidden[t - 1]) < 1


def test_bfloat16_stays_within_its_rounding(reference, golden_folder):
    expected = reference("parcae", "plain")
    model = load_model(golden_folder("parcae"), dtype="bfloat16")
    # The published cast rounds the table of the rotation, too.
    assert model.freqs_cis.dtype == torch.bfloat16
    walk = Walk.of(model, batch_of(expected))
    for t in DEPTHS:
        difference = (walk.advance().float() - expected.raw[t - 1]).abs().max() / expected.raw[t - 1].abs().max()
        assert 0 < difference < 8 * 2**-8


def _scaled(ending, factor):
    return lambda held: {name: held[name] * factor if name.endswith(ending) else held[name] for name in held}


def _replaced(name, value):
    return lambda held: held | {name: value(held)}


def _table(held, theta):
    positions, pairs = held["freqs_cis"].shape[1], held["freqs_cis"].shape[3]
    angles = torch.arange(positions)[:, None] * theta ** (-torch.arange(pairs) / pairs)
    return torch.stack([angles.cos(), angles.sin()], -1)[None, :, None]


def _half_split(self, positions, dtype):
    pairs = self.table[0, :, 0].to(dtype)[positions]
    cos, sin = (torch.cat([part, part], -1)[..., None, :] for part in pairs.unbind(-1))
    return RotaryTables(cos, sin, "half")


class _GateOfTheStream(nn.Module):
    """A value gate that reads the residual stream instead of its norm."""

    def __init__(self, block):
        super().__init__()
        self.gate, self.stream = block.attn.ve_gate, None
        block.register_forward_pre_hook(lambda module, given: setattr(self, "stream", given[0].state))

    def forward(self, normed):
        return self.gate(self.stream[..., :32])


def _gates_of_the_stream(model):
    for part in ("prelude", "core_block"):
        for block in model.transformer[part]:
            if block.attn.ve_gate is not None:
                block.attn.ve_gate = _GateOfTheStream(block)
    return model


def _patched(owner, name, value):
    return lambda write, patch: (patch.setattr(owner, name, value), load_model(write("parcae")))[1]


def _stored(change):
    return lambda write, patch: load_model(write("parcae", change))


TRAPS = {
    "no ½ in relu²": _stored(_scaled(".mlp.proj.weight", 2.0)),
    "half-split rope": _patched(StoredRotary, "tables", _half_split),
    "no norm of queries and keys": _patched(
        ParcaeAttention, "_turned", lambda self, x, tables, plain: rotate_own(x, tables)
    ),
    "no norm after the prelude": _patched(Parcae, "embedded", RecurrentDepth._prelude),
    "no value embeddings": _stored(
        lambda held: {name: held[name] for name in held if "ve_gate" not in name and "value_embeds" not in name}
    ),
    "value gate without the 2": _stored(
        lambda held: {name: held[name] / 2 if "value_embeds" in name else held[name] for name in held}
    ),
    "value gate of the stream": lambda write, patch: _gates_of_the_stream(load_model(write("parcae"))),
    "no C": _stored(_replaced("transformer.C.weight", lambda held: torch.eye(48))),
    "no δ on the input": _stored(
        _replaced(
            "transformer.adapter.B",
            lambda held: (
                held["transformer.adapter.B"] / functional.softplus(held["transformer.adapter.dt_bias"])[:, None]
            ),
        )
    ),
    "no decay": _stored(_replaced("transformer.adapter.A_log", lambda held: torch.full((48,), -1e4))),
    "B transposed": _stored(
        _replaced("transformer.adapter.B", lambda held: held["transformer.adapter.B"].T.contiguous())
    ),
    "theta 10000": _stored(_replaced("freqs_cis", lambda held: _table(held, 10000.0))),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_the_published_outputs_tell_a_trap_apart(reference, golden_variant, monkeypatch, trap):
    assert largest(TRAPS[trap](golden_variant, monkeypatch), reference("parcae", "plain")) > 100


def test_positions_are_those_of_the_stored_table(reference, golden_variant):
    other = {"use_rope": True, "rope_condense_ratio": 1, "rope_base": 1234}
    assert largest(load_model(golden_variant("parcae", rope_settings=other)), reference("parcae", "plain")) < 1


def test_the_table_without_a_checkpoint_is_that_of_the_configuration(golden_folder, model):
    drawn = load_model(golden_folder("parcae"), model_args={"random_weights": True})
    assert (drawn.freqs_cis - model.freqs_cis).abs().max() < 1e-5
    assert drawn.config.value_layers == model.config.value_layers == {1, 3, 5}
    walk = Walk.of(drawn, Batch.from_rows([[1, 2, 3]])).to(30)
    assert bool(walk.state.isfinite().all() and walk.read().isfinite().all())


@pytest.mark.parametrize("missing", ["value_embeds.3.weight", "transformer.core_block.1.attn.ve_gate.weight"])
def test_values_of_tokens_need_a_table_and_a_gate(golden_variant, missing):
    without = load_model(golden_variant("parcae", lambda held: {n: held[n] for n in held if n != missing}))
    assert without.config.value_layers == {1, 5}
    neither = load_model(
        golden_variant(
            "parcae", lambda held: {n: held[n] for n in held if "core_block.1.attn.ve" not in n and "embeds.3" not in n}
        )
    )
    batch = Batch.from_rows([[1, 2, 3]])
    assert torch.equal(without.states(batch, [3])[3], neither.states(batch, [3])[3])


def test_any_other_missing_tensor_is_named(golden_variant):
    gone = "transformer.ln_prelude.weight"
    with pytest.raises(LoopscopeError, match=f"lacks the tensor '{gone}'"):
        load_model(golden_variant("parcae", lambda held: {n: held[n] for n in held if n != gone}))


REFUSED = {
    "bias": True,
    "qk_bias": True,
    "qk_norm": False,
    "prelude_norm": False,
    "clip_qkv": 3.0,
    "logit_softcap": 30.0,
    "nonlin_name": "GELU",
    "mlp_class_name": "GatedMLP",
    "injection_type": "linear",
    "state_init": "zero",
    "init_strategy": "takase",
    "use_abacus": True,
    "randomize_positions_from": 1024,
    "debias_attention": True,
    "center_attention": True,
    "block_class_name": "SandwichBlock",
    "norm_class_name": "LayerNorm",
    "num_key_value_heads": 2,
    "recurrent_num_attention_heads": 2,
    "recurrent_embedding_dimension": 64,
    "rope_settings": {"use_rope": False},
}


@pytest.mark.parametrize("switch", REFUSED)
def test_switches_that_make_another_function_are_refused_by_name(golden_variant, switch):
    named = "use_rope" if switch == "rope_settings" else switch
    with pytest.raises(LoopscopeError, match=f"{named} .* is not supported, only") as caught:
        load_model(golden_variant("parcae", **{switch: REFUSED[switch]}))
    assert "\n" not in str(caught.value)


def test_a_configuration_without_its_class_is_unknown(golden_variant):
    with pytest.raises(LoopscopeError, match="unknown architecture"):
        load_model(golden_variant("parcae", _class_name=...))
    with pytest.raises(LoopscopeError, match="unknown architecture 'OtherConfig'"):
        load_model(golden_variant("parcae", _class_name="OtherConfig"))


def test_the_readout_needs_the_tokens(model):
    context = model.embed(Batch.from_rows([[1, 2, 3], [4, 5, 6]]))
    with pytest.raises(LoopscopeError, match="give its readout the context of the rows"):
        model.readout(context.state)
    everything = model.readout(context.state, dtype=torch.float64, context=context)
    second = context.rows(slice(1, 2))
    assert torch.equal(model.readout(second.state, dtype=torch.float64, context=second), everything[1:])
    chosen = model.readout(context.state, torch.tensor([[1, 2], [0, 0]]), torch.float64, context)
    assert (chosen - torch.stack([everything[1, 2], everything[0, 0]])).abs().max() < 1e-12


@torch.no_grad()
def test_padding_and_company_do_not_change_a_row(model):
    rows, sources = [[1, 2, 3, 4, 5], [6, 7]], [8, 2]
    walk = Walk.of(model, Batch.from_rows(rows, source_rows=sources)).to(4)
    for index, row in enumerate(rows):
        alone = Walk.of(model, Batch.from_rows([row], source_rows=sources[index : index + 1])).to(4)
        assert torch.equal(walk.state[index, : len(row)], alone.state[0])
        assert torch.equal(walk.read()[index, : len(row)], alone.read()[0])
    with pytest.raises(LoopscopeError, match="pad on the right"):
        model.embed(Batch.from_rows(rows, padding="left"))


def test_the_first_state_is_drawn_by_question_or_by_the_published_calls(golden_folder, model):
    batch = Batch.from_rows([[1, 2, 3, 4], [1, 2, 9]], source_rows=[5, 5])
    drawn = model.embed(batch).state
    std = math.sqrt(2 / (5 * 48))
    assert model.initial_state.std == std
    assert torch.equal(drawn[0, :3], drawn[1, :3])
    assert drawn.abs().max() <= 3.01 * std
    official = load_model(golden_folder("parcae"), model_args="initial_state=official")
    state = official.embed(Batch.from_rows([[1, 2, 3, 4]], source_rows=[5])).state[0]
    generator = torch.Generator().manual_seed(official.initial_state.seed + 5)
    torch.randn(4, 48, generator=generator)
    expected = nn.init.trunc_normal_(torch.empty(4, 48), 0.0, std, -3 * std, 3 * std, generator=generator)
    assert torch.equal(state, expected)
    with pytest.raises(LoopscopeError, match="initial_state=zero is not known: choose question or paper or official"):
        load_model(golden_folder("parcae"), model_args="initial_state=zero")


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("sampler", [Sampler(), Sampler(temperature=0.9, seed=3)])
def test_generation_with_kept_keys_and_values(model, depth, sampler):
    prompts = [[5, 9, 1, 60, 33], [7], [8, 2, 4]]
    asked = {"max_new_tokens": 6, "depth": depth, "sampler": sampler, "source_rows": [4, 5, 6], "eos_ids": []}
    assert generate(model, prompts, impl="cached", **asked) == generate(model, prompts, impl="reference", **asked)


def test_kept_keys_give_the_published_logits(reference, model):
    expected, cache, logits = reference("parcae", "plain"), KeyValueCache(20), []
    for start, stop in [(0, 12), (12, 13), (13, 20)]:
        ids, cache.used = expected.input_ids[:, start:stop], stop
        state, positions = expected.s0[:, start:stop], torch.arange(start, stop)[None]
        context = model.embed_cached(Batch(ids, torch.ones_like(ids), positions, initial_state=state), cache)
        logits.append(model.readout_cached(Walk(model, context).to(4).state, context))
    assert off(torch.cat(logits, 1), expected.logits[3]) < 1
    assert cache.slots() == list(range(-2, 2 + 4 * 2))


def test_it_is_a_looped_model(model):
    assert isinstance(model, LoopedModel)
    assert (model.family, model.hidden_size, model.vocabulary_size, model.trained_depth) == ("parcae", 48, 192, 4)
    assert model.head is None
    assert model.trained_clock is None
    assert (model.eos_ids, model.max_positions) == ((), 64)
    # Without the stored table and with the tied head counted once.
    assert model.card.parameters == 153984 - 64 * 6 * 2 - 192 * 48
