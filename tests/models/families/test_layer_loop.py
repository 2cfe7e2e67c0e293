"""Looped layers of Llama-style models against plain float64 loops over positions and heads."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from loopscope.errors import LoopscopeError
from loopscope.models.batch import Batch
from loopscope.models.families.layer_loop import LayerLoop, LayerLoopConfig

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 61,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 64,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "eos_token_id": [3, 4],
}
KINDS = {
    "llama": {},
    "llama with biases": {"attention_bias": True, "head_dim": 12},
    "tied": {"tie_word_embeddings": True},
    "mistral": {"architectures": ["MistralForCausalLM"], "sliding_window": None},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": False, "sliding_window": 32},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "head_dim": 10, "num_key_value_heads": 1},
}


def looped(span):
    return {"loop": f"{span[0]}-{span[1]}"}


def build(randomise, changes, span, *, prepare=True):
    model = randomise(LayerLoop(LayerLoopConfig.read(CONFIG | changes, chosen=looped(span))), seed=7)
    if prepare:
        model.prepare()
    return model


def plain_layer(plain, model, x, i):
    sizes, w = model.config.sizes, plain.weights(model)
    at, count = f"model.layers.{i}.", len(x)
    frequencies = plain.frequencies(sizes.head_width, model.rotary.theta)
    pairs = plain.half_pairs(sizes.head_width)

    def project(y, name, heads):
        flat = y @ w[f"{at}self_attn.{name}_proj.weight"].T + w.get(f"{at}self_attn.{name}_proj.bias", 0.0)
        split = flat.reshape(count, heads, sizes.head_width)
        norm = w.get(f"{at}self_attn.{name}_norm.weight")
        return split if norm is None else plain.rms_norm(split, norm, model.config.rms_norm_eps)

    y = plain.rms_norm(x, w[at + "input_layernorm.weight"], model.config.rms_norm_eps)
    q = plain.rotate(project(y, "q", sizes.heads), frequencies, pairs)
    k = plain.rotate(project(y, "k", sizes.key_value_heads), frequencies, pairs)
    mixed = plain.attention(q, k, project(y, "v", sizes.key_value_heads))
    x = x + mixed @ w[at + "self_attn.o_proj.weight"].T + w.get(at + "self_attn.o_proj.bias", 0.0)
    y = plain.rms_norm(x, w[at + "post_attention_layernorm.weight"], model.config.rms_norm_eps)
    gated = plain.silu(y @ w[at + "mlp.gate_proj.weight"].T) * (y @ w[at + "mlp.up_proj.weight"].T)
    return x + gated @ w[at + "mlp.down_proj.weight"].T


def plain_run(plain, model, ids, order):
    """The layers in the given order, then norm and head."""
    w = plain.weights(model)
    x = w["model.embed_tokens.weight"][ids]
    for i in order:
        x = plain_layer(plain, model, x, i)
    return plain.rms_norm(x, w["model.norm.weight"], model.config.rms_norm_eps) @ w["lm_head.weight"].T


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prepared", [False, True])
def test_every_kind_against_plain_loops(plain, randomise, kind, prepared):
    model = build(randomise, KINDS[kind], (1, 3), prepare=prepared)
    rows = [[5, 9, 1, 60, 33, 2], [7, 8, 8]]
    states = model.states(Batch.from_rows(rows), [0, 1, 3])
    for depth, order in ((0, [0, 4]), (1, [0, 1, 2, 3, 4]), (3, [0, 1, 2, 3, 1, 2, 3, 1, 2, 3, 4])):
        for dtype in (None, torch.float64):
            with torch.no_grad():
                logits = model.readout(states[depth], dtype=dtype)
            for row, ids in enumerate(rows):
                expected = plain_run(plain, model, ids, order)
                assert np.abs(logits[row, : len(ids)].numpy() - expected).max() < 5e-5


@pytest.mark.parametrize("span", [(0, 0), (2, 3), (0, 4), (4, 4)])
def test_depth_one_is_the_ordinary_model_exactly(randomise, span):
    model, whole = build(randomise, {}, span), build(randomise, {}, (0, 4))
    batch = Batch.from_rows([[5, 9, 1, 60], [7, 8]])
    with torch.no_grad():
        logits = model.readout(model.states(batch, [1])[1])
        assert torch.equal(logits, whole.readout(whole.states(batch, [1])[1]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "architectures.0 'GPT2LMHeadModel' is not supported"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 4096}, "sliding_window 4096 is not supported"),
        ({"mlp_bias": True}, "mlp_bias True is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling.rope_type 'dynamic' is not supported"),
    ],
)
def test_what_is_not_supported_gets_one_line(changes, message):
    with pytest.raises(LoopscopeError, match=message):
        LayerLoopConfig.read(CONFIG | changes, chosen={"loop": "1-2"})
