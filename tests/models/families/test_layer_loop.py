"""Looped layers of Llama-style models; `test_transformers_loop` compares them with transformers."""

from __future__ import annotations

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


def looped(span):
    return {"loop": f"{span[0]}-{span[1]}"}


def build(randomise, changes, span):
    model = randomise(LayerLoop(LayerLoopConfig.read(CONFIG | changes, chosen=looped(span))), seed=7)
    model.prepare()
    return model


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
