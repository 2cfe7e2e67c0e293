"""HRM-Text against the published implementations' outputs; every trap of the family tells itself apart there."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from loopscope.errors import LoopscopeError
from loopscope.models.batch import Batch
from loopscope.models.families.detect import build_model
from loopscope.models.families.hrm_text import HrmStack, HrmText
from loopscope.models.layers.attention import KeyValueCache
from loopscope.models.layers.blocks import GatedAttention, SeparateAttention
from loopscope.models.load import load_model
from loopscope.models.protocol import LoopedModel
from loopscope.models.registry import find_published
from loopscope.models.walk import Walk


@pytest.fixture(scope="module")
def causal(golden_folder):
    return load_model(golden_folder("hrm_text"), model_args="attention=causal")


@pytest.fixture(scope="module")
def model(golden_folder):
    return load_model(golden_folder("hrm_text"))


@pytest.mark.parametrize("case", ["plain", "rightpad"])
def test_both_states_and_logits_of_the_published_code(reference, distance, causal, case):
    assert distance(causal, reference("hrm_text", case)) < 1


def test_the_prompt_as_a_prefix(reference, distance, model):
    expected = reference("hrm_text", "prefix")
    assert distance(model, expected, prompt_lengths=expected.token_type_ids.sum(1)) < 1
    assert model.config.prefix


def test_every_update_of_the_fast_state(reference, causal, monkeypatch):
    expected, seen = reference("hrm_text", "plain"), []
    forward = HrmStack.forward

    def kept(stack, *given):
        made = forward(stack, *given)
        if stack is causal.model.L_module:
            seen.append(made)
        return made

    monkeypatch.setattr(HrmStack, "forward", kept)
    with torch.no_grad():
        walk = Walk.of(causal, Batch.of(expected.input_ids))
        assert (walk.state - expected.s0_H).abs().max() < 1e-5
        walk.to(3)
    assert len(seen) == 9
    found = torch.stack(seen).reshape(expected.z_L_inner.shape)
    assert (found - expected.z_L_inner).abs().max() < 1e-4


def test_prefixes_of_many_rows_are_those_of_each_row_alone(model):
    rows, lengths = [[5, 9, 1, 60, 33, 2], [7, 8, 8], [3, 4, 5, 6, 7]], [4, 3, 0]
    for padding in ("right", "left"):
        together = Batch.from_rows(rows, padding=padding, prompt_lengths=lengths)
        states = model.states(together, [2])[2]
        for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            alone = model.states(Batch.from_rows([row], prompt_lengths=[length]), [2])[2][0]
            assert (states[index][together.attention_mask[index]] - alone).abs().max() < 1e-5


def test_no_prompt_is_causal_and_a_changed_end_of_the_prompt_reaches_its_beginning(model, causal):
    row, other = [5, 9, 1, 60, 33, 2], [5, 9, 1, 61, 33, 2]
    without = model.states(Batch.from_rows([row], prompt_lengths=[0]), [1])[1]
    assert torch.equal(without, causal.states(Batch.from_rows([row]), [1])[1])
    first, second = (model.states(Batch.from_rows([ids], prompt_lengths=[4]), [1])[1][0, 0] for ids in (row, other))
    assert (first - second).abs().max() > 1e-2
    assert torch.equal(*(causal.states(Batch.from_rows([ids]), [1])[1][0, 0] for ids in (row, other)))


def test_a_prompt_that_nobody_named_is_refused(model):
    with pytest.raises(LoopscopeError, match="give Batch its prompt_lengths"):
        model.embed(Batch.from_rows([[1, 2, 3]]))
    with pytest.raises(LoopscopeError, match="prompt_lengths has shape"):
        Batch.from_rows([[1, 2, 3]], prompt_lengths=[1, 2])


@pytest.mark.parametrize("case", ["plain", "prefix", "rightpad"])
def test_bfloat16_stays_within_its_rounding(reference, roundings, golden_folder, case):
    expected = reference("hrm_text", case)
    lengths = expected.token_type_ids.sum(1) if case == "prefix" else None
    args = {"attention": "causal" if lengths is None else "prefix"}
    model = load_model(golden_folder("hrm_text"), model_args=args, dtype="bfloat16")
    assert roundings(model, expected, prompt_lengths=lengths)


def test_every_call_of_a_stack_has_keys_of_its_own(causal, monkeypatch):
    cache, ids, written = KeyValueCache(3), torch.tensor([[1, 2, 3]]), []
    cache.used = 3
    forward = HrmStack.forward

    def kept(stack, x, around, call):
        before = set(cache.slots())
        made = forward(stack, x, around, call)
        written.append(("H" if stack is causal.model.H_module else "L", sorted(set(cache.slots()) - before)))
        return made

    monkeypatch.setattr(HrmStack, "forward", kept)
    with torch.no_grad():
        Walk(causal, causal.embed_cached(Batch(ids, torch.ones_like(ids), torch.arange(3)[None]), cache)).to(2)
    fast, layers = 3, 2
    expected = [
        ("L" if call < fast else "H", [(h * (fast + 1) + call) * layers + i for i in range(layers)])
        for h in range(2)
        for call in range(fast + 1)
    ]
    assert written == expected


def _without_last_norm(stack, x, around, call):
    from loopscope.models.layers.blocks import run_blocks

    first = call * len(stack.layers)
    return run_blocks(x, stack.layers, around, range(first, first + len(stack.layers))).state


def _blocks(order):
    """The row blocks gate, q, k, v of every joined matrix in another order."""

    def change(tensors):
        return {
            name: torch.cat([value.chunk(4)[i] for i in order]).contiguous() if "gqkv" in name else value
            for name, value in tensors.items()
        }

    return change


def _halves_swapped(tensors):
    return {
        name: torch.cat(value.chunk(2)[::-1]).contiguous() if "gate_up" in name else value
        for name, value in tensors.items()
    }


def _reset(self, state, context, *, carry, depth=0):
    return _step(self, state, context, carry=context.carry, depth=depth)


def _embedding_again(self, state, context, *, carry, depth=0):
    return _step(self, state + (context.state if depth else 0), context, carry=carry, depth=depth)


_step = HrmText.step


TRAPS = {
    "embedding_scale left out": ({"embedding_scale": 1.0}, None, {}),
    "z_L from zero": ({}, lambda held: held | {"model.z_L_init": torch.zeros(48)}, {}),
    "row blocks read as q, gate, k, v": ({}, _blocks((1, 0, 2, 3)), {}),
    "gate and up swapped": ({}, _halves_swapped, {}),
    "z_L reset in every H cycle": ({}, None, {(HrmText, "step"): _reset}),
    "embedding added in every H cycle": ({}, None, {(HrmText, "step"): _embedding_again}),
    "norm at the end of a stack missing": ({}, None, {(HrmStack, "forward"): _without_last_norm}),
    "gate of attention missing": ({}, None, {(GatedAttention, "forward"): SeparateAttention.forward}),
    "one L cycle more": ({"L_cycles": 4}, None, {}),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_the_published_outputs_tell_a_trap_apart(reference, distance, golden_variant, monkeypatch, trap):
    fields, change, patches = TRAPS[trap]
    model = load_model(golden_variant("hrm_text", change, **fields), model_args="attention=causal")
    for (owner, name), other in patches.items():
        monkeypatch.setattr(owner, name, other)
    assert distance(model, reference("hrm_text", "plain")) > 100


def test_causal_attention_is_not_the_prefix(reference, distance, causal):
    assert distance(causal, reference("hrm_text", "prefix")) > 1000


def test_split_tensors_are_the_joined_ones(golden_folder, golden_variant, reference, distance):
    names = ("gate", "q", "k", "v")

    def split(tensors):
        made = {}
        for name, value in tensors.items():
            if "gqkv" in name:
                at = name.replace("attn.gqkv_proj", "self_attn.{}_proj")
                made |= {at.format(part): block.clone() for part, block in zip(names, value.chunk(4), strict=True)}
            elif "gate_up" in name:
                at = name.replace("gate_up", "{}")
                made |= {
                    at.format(part): block.clone() for part, block in zip(("gate", "up"), value.chunk(2), strict=True)
                }
            else:
                made[name.replace(".attn.o_proj", ".self_attn.o_proj")] = value.clone()
        return made

    other = load_model(golden_variant("hrm_text", split), model_args="attention=causal")
    assert distance(other, reference("hrm_text", "plain")) < 1
    stored = load_file(golden_folder("hrm_text") / "model.safetensors")
    gate = other.model.L_module.layers[1].self_attn.gate_proj.weight
    assert torch.equal(gate, stored["model.L_module.layers.1.attn.gqkv_proj.weight"][:48])
    both = golden_variant("hrm_text", lambda held: held | split(held))
    with pytest.raises(LoopscopeError, match=r"stores 'model\..*' twice, joined and by itself"):
        load_model(both)


@pytest.mark.parametrize(
    "fields",
    [{"num_hidden_layers": 16, "num_layers_per_stack": 2}, {"num_hidden_layers": 4}, {"num_hidden_layers": 999}],
)
def test_layers_are_counted_from_the_tensors(golden_variant, fields):
    assert load_model(golden_variant("hrm_text", **fields)).config.layers == 2


def test_a_file_that_a_newer_library_saved_again(reference, distance, golden_variant):
    positions = {"rope_theta": ..., "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    folder = golden_variant("hrm_text", num_hidden_layers=16, num_layers_per_stack=2, **positions)
    assert distance(load_model(folder, model_args="attention=causal"), reference("hrm_text", "plain")) < 1


def test_stacks_of_different_heights_are_refused(golden_variant):
    def without(tensors):
        return {name: value for name, value in tensors.items() if "L_module.layers.1." not in name}

    with pytest.raises(LoopscopeError, match="2 layers of H_module and 1 of L_module"):
        load_model(golden_variant("hrm_text", without))


def test_more_layers_than_any_model_has_are_refused_before_they_are_built():
    names = [f"model.{stack}_module.layers.{i}.mlp.down_proj.weight" for stack in "HL" for i in range(1001)]
    with pytest.raises(LoopscopeError, match="holds 1001 layers of H_module, more than 1000"):
        build_model("hrm-text", find_published("hrm-text-1b").config, None, names)


def test_the_scale_of_the_embedding_follows_from_its_width(golden_variant):
    width = json.loads((golden_variant("hrm_text") / "config.json").read_text())["initializer_range"]
    assert load_model(golden_variant("hrm_text", embedding_scale=...)).config.embedding_scale == 1 / width


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ("attention=both", "attention=both is not known: choose prefix or causal"),
        ("L_cycles=0", "L_cycles=0 is not a whole number from 1"),
        ("H_cycles=3", "HRM-Text has no option 'H_cycles': choose attention, L_cycles"),
    ],
)
def test_choices_that_there_are_not(golden_folder, choices, said):
    with pytest.raises(LoopscopeError, match=said):
        load_model(golden_folder("hrm_text"), model_args=choices)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"num_key_value_heads": 2}, "num_key_value_heads 2 is not supported"),
        ({"attention_bias": True}, "attention_bias True is not supported"),
        ({"mlp_bias": True}, "mlp_bias True is not supported"),
        ({"H_cycles": 0}, "H_cycles must be a positive integer"),
    ],
)
def test_other_functions_are_refused_by_name(golden_variant, fields, said):
    with pytest.raises(LoopscopeError, match=said):
        load_model(golden_variant("hrm_text", **fields))


def test_a_model_that_was_not_trained_with_prefixes_is_causal(golden_variant):
    folder = golden_variant("hrm_text", prefix_lm=False)
    assert not load_model(folder).config.prefix
    with pytest.raises(LoopscopeError, match="prefix_lm is false"):
        load_model(folder, model_args="attention=prefix")


def test_what_was_chosen_is_part_of_name_and_boundary(golden_folder, causal, model):
    assert isinstance(model, LoopedModel)
    assert (model.family, model.trained_depth, model.eos_ids) == ("hrm-text", 2, (11,))
    assert model.boundary.endswith("(3 L cycles a step, the prompt attends both ways)")
    other = load_model(golden_folder("hrm_text"), model_args="attention=causal,L_cycles=5")
    assert other.name == "hrm_text:attention=causal,L_cycles=5"
    assert other.boundary.endswith("(5 L cycles a step, causal attention)")
    assert (causal.shares_context, model.shares_context) == (True, False)
    drawn = load_model(golden_folder("hrm_text"), model_args={"random_weights": True})
    assert drawn.card.parameters == model.card.parameters
    assert drawn.model.z_L_init.std() > 0.5
