"""Random weights: any family without a checkpoint, the same for the same seed, and finite however deep."""

import json

import pytest
import torch

from loopscope import Batch, load_model
from loopscope.errors import LoopscopeError
from loopscope.models.load import card_of

FAMILIES = ["ouro", "huginn", "retrofit-llama", "retrofit-olmo"]
BATCH = Batch.from_rows([[1, 2, 3, 4], [5, 6, 7, 8]])


def weights(model):
    return {name: parameter.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_states_and_logits_stay_finite_and_of_order_one(tiny, family, dtype):
    model = load_model(str(tiny(family)), model_args={"random_weights": True}, dtype=dtype)
    for depth, state in model.states(BATCH, [1, 8, 64]).items():
        assert 0.05 < state.float().std() < 20, depth
        assert 0.05 < model.readout(state).float().std() < 20, depth


@pytest.mark.parametrize("family", FAMILIES[1:])
def test_a_loop_that_reads_its_input_comes_to_rest(tiny, family):
    model = load_model(str(tiny(family)), model_args={"random_weights": True}, dtype="float32")
    states = model.states(BATCH, [1, 2, 19, 20])
    early, late = ((states[t + 1] - states[t]).norm() / states[t].norm() for t in (1, 19))
    assert late < 0.2 * early


@pytest.mark.parametrize("family", FAMILIES)
def test_same_seed_same_weights(tiny, family):
    folder = str(tiny(family))
    one, same, other = (load_model(folder, model_args={"random_weights": True, "seed": seed}) for seed in (3, 3, 4))
    for name, tensor in weights(one).items():
        assert torch.equal(tensor, weights(same)[name])
        if tensor.dim() == 2:
            assert not torch.equal(tensor, weights(other)[name])


def test_marked_as_random_everywhere(tiny):
    model = load_model(str(tiny("huginn")), model_args={"random_weights": True, "seed": 5})
    card = card_of(model)
    assert model.is_random
    assert model.name == card.name == "checkpoint (random weights)"
    assert (card.kind, card.random, card.seed, card.files) == ("random", True, 5, ())


def test_retrofit_folder_is_told_apart_by_its_header_or_index(tiny):
    assert load_model(str(tiny("retrofit-olmo", "a")), model_args={"random_weights": True}).family == "retrofit-olmo"
    assert (
        load_model(str(tiny("retrofit-olmo", "b", shards=2)), model_args={"random_weights": True}).family
        == "retrofit-olmo"
    )
    bare = tiny("retrofit-olmo", "c")
    (bare / "model.safetensors").unlink()
    with pytest.raises(LoopscopeError, match="does not say whether the model is huginn or"):
        load_model(str(bare), model_args={"random_weights": True})


@pytest.mark.parametrize(
    ("fields", "dtype"),
    [
        ({"torch_dtype": "bfloat16"}, torch.bfloat16),
        ({"dtype": "float16"}, torch.float16),
        ({"dtype": "float16", "torch_dtype": "bfloat16"}, torch.float16),
        ({}, torch.float32),
    ],
)
def test_dtype_that_the_configuration_states(tiny, fields, dtype):
    folder = tiny("ouro")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    assert load_model(folder, model_args={"random_weights": True}).dtype == dtype
