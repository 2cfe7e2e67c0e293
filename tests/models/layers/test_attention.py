"""Attention against loops over positions and heads; padding on either side; the two implementations."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from loopscope.models.batch import Batch
from loopscope.models.families.layer_loop import LayerLoop, LayerLoopConfig
from loopscope.models.layers.attention import attend
from loopscope.models.layers.positions import KeyValueCache, Rotary, attention_context

ROTARY = Rotary(8, 100.0)


def queries(heads, shared, rows=1, width=9, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(rows, width, count, 8, generator=generator, dtype=torch.float64).to(dtype)
        for count in (heads, shared, shared)
    ]


def at_positions(positions):
    ids = torch.zeros_like(positions)
    return Batch(ids, torch.ones_like(ids), positions)


def around(batch, dtype=torch.float64, plain=False):
    return dataclasses.replace(attention_context(batch, ROTARY, dtype), plain=plain)


@pytest.mark.parametrize(("heads", "shared"), [(1, 1), (4, 4), (6, 2), (5, 1)])
@pytest.mark.parametrize("is_plain", [False, True])
def test_one_sequence(plain, heads, shared, is_plain):
    q, k, v = queries(heads, shared)
    batch = Batch.of(torch.zeros(1, 9, dtype=torch.int64))
    found = attend(q, k, v, around(batch, plain=is_plain), 0)
    assert np.abs(found[0].numpy() - plain.attention(q[0].numpy(), k[0].numpy(), v[0].numpy())).max() < 1e-13


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("shared", [4, 2])
@pytest.mark.parametrize("is_plain", [False, True])
def test_padding_is_never_seen(plain, padding, shared, is_plain):
    lengths = [9, 4, 1]
    batch = Batch.from_rows([[1] * length for length in lengths], padding=padding)
    q, k, v = queries(4, shared, rows=3)
    for tensor in (q, k, v):
        tensor[~batch.attention_mask] = 1e6
    found = attend(q, k, v, around(batch, plain=is_plain), 0)
    assert found.isfinite().all()
    for row, valid in enumerate(batch.attention_mask):
        expected = plain.attention(*(tensor[row, valid].numpy() for tensor in (q, k, v)))
        assert np.abs(found[row, valid].numpy() - expected).max() < 1e-12


def test_rows_of_different_lengths_continue_in_the_cache_at_their_own_positions(plain):
    lengths, extra = [6, 2, 4], 3
    q, k, v = queries(4, 2, rows=3, width=9)
    cache = KeyValueCache(9)
    cache.used = 6
    positions = torch.arange(6).expand(3, 6)
    first = attention_context(at_positions(positions), ROTARY, torch.float64, cache=cache)
    found = [attend(q[:, :6], k[:, :6], v[:, :6], first, 7)]
    outputs = [[found[0][row, s] for s in range(length)] for row, length in enumerate(lengths)]
    for step in range(extra):
        at = torch.tensor([[length + step] for length in lengths])
        pick = at[..., None, None]
        cache.used = int(at.max()) + 1
        later = attention_context(at_positions(at), ROTARY, torch.float64, cache=cache)
        new = attend(*(x.gather(1, pick.expand(3, 1, *x.shape[2:])) for x in (q, k, v)), later, 7)
        for row in range(3):
            outputs[row].append(new[row, 0])
    for row, length in enumerate(lengths):
        valid = slice(0, length + extra)
        expected = plain.attention(*(tensor[row, valid].numpy() for tensor in (q, k, v)))
        assert np.abs(torch.stack(outputs[row]).numpy() - expected).max() < 1e-13
    assert cache.slots() == [7]


FAMILIES = ["huginn", "retrofit_llama", "retrofit_olmo", "loop", "loop_of_qwen3", "loop_to_the_end"]
ROWS = [[5, 9, 1, 60, 33, 2, 17], [7, 8, 30, 4], [3], [1, 2, 3, 4, 5]]
POSITIONS = {
    "ragged": [[0, 2], [0, 6], [1, 3], [3, 0], [3, 4], [3, 1]],
    "out of order, repeated": [[3, 4], [0, 6], [1, 0], [0, 6], [3, 2], [0, 0]],
    "one": [[1, 2]],
    "from the end": [[0, -1], [-1, 4], [1, -5]],
    "a row of its own": [[2, 0]],
    "all": [[row, position] for row in range(4) for position in range(7)],
    "none": [],
}
LLAMA = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 5, "num_attention_heads": 4, "vocab_size": 256,
    "num_key_value_heads": 2, "rope_theta": 1e4, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def model_of(golden_model, randomise):
    built = {}

    def build(family, *, prepare=True):
        if (family, prepare) not in built:
            if family.startswith("loop"):
                name = "Qwen3ForCausalLM" if family == "loop_of_qwen3" else "LlamaForCausalLM"
                span = "1-4" if family == "loop_to_the_end" else "1-2"
                config = LayerLoopConfig.read(LLAMA | {"architectures": [name]}, chosen={"loop": span})
                model = randomise(LayerLoop(config))
                if prepare:
                    model.prepare()
            else:
                model = golden_model(family, prepare=prepare)
            built[family, prepare] = model
        return built[family, prepare]

    return build


@pytest.fixture(params=FAMILIES)
def model(request, model_of):
    return model_of(request.param)


def state_of(model, seed=0):
    shape = (len(ROWS), 7, model.hidden_size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def at(everything, positions):
    where = torch.tensor(positions, dtype=torch.int64).reshape(-1, 2)
    return everything[where[:, 0], where[:, 1]], where


@pytest.mark.parametrize("case", POSITIONS)
def test_equals_the_full_readout(model, case):
    state = state_of(model)
    with torch.no_grad():
        expected, where = at(model.readout(state, dtype=torch.float64), POSITIONS[case])
        found = model.readout(state, where, torch.float64)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_the_last_block_runs_at_the_positions_asked_for(model_of):
    model, widths = model_of("huginn"), []
    last = model.transformer["coda"][-1]
    hook = last.mlp.register_forward_hook(lambda module, given, result: widths.append(tuple(given[0].shape[:2])))
    with torch.no_grad():
        model.readout(state_of(model).float(), torch.tensor(POSITIONS["ragged"]))
        model.readout(state_of(model).float())
    hook.remove()
    assert widths == [(1, 6), (4, 7)]


def test_every_parameter_of_an_unprepared_model_gets_its_gradient(model_of):
    for family in FAMILIES:
        model = model_of(family, prepare=False).requires_grad_(True)
        gradients = []
        for narrow in (True, False):
            model.zero_grad()
            state = state_of(model).float()
            everything = POSITIONS["ragged"]
            if narrow:
                logits = model.readout(state, torch.tensor(everything))
            else:
                logits = at(model.readout(state), everything)[0]
            logits.sin().sum().backward()
            gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        assert gradients[0].keys() == gradients[1].keys()
        assert gradients[0]
        for name, found in gradients[0].items():
            torch.testing.assert_close(found, gradients[1][name], rtol=1e-3, atol=1e-4, msg=f"{family} {name}")


@pytest.mark.parametrize("width", [1, 3])
def test_new_positions_of_a_cache(model, width):
    """A prompt, then `width` more positions, read at one position a row and at all of them."""
    ids = torch.randint(0, 256, (2, 4 + width), generator=torch.Generator().manual_seed(1))
    initial = torch.randn(2, 4 + width, model.hidden_size, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        found = []
        for narrow in (True, False):
            cache = KeyValueCache(4 + width)
            for start, stop in ((0, 4), (4, 4 + width)):
                part = slice(start, stop)
                cache.used = stop
                positions = torch.arange(start, stop).expand(2, -1)
                batch = Batch(ids[:, part], torch.ones_like(ids[:, part]), positions, initial_state=initial[:, part])
                context = model.embed(batch, cache)
                state = model.step(context.state, context)
                where = torch.tensor([[1, stop - start - 1], [0, 0]])
                if narrow:
                    found.append(model.readout_cached(state, context, where))
                else:
                    found.append(model.readout_cached(state, context)[where[:, 0], where[:, 1]])
    torch.testing.assert_close(torch.stack(found[:2]), torch.stack(found[2:]), rtol=0, atol=1e-5)
