"""What every model shares: preparation, readout arithmetic, derivatives through the readout, one's own model."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from loopscope.models.batch import Batch, select
from loopscope.models.families.layer_loop import LayerLoop, LayerLoopConfig
from loopscope.models.protocol import AffineHead, Context, LoopedModel, LoopedModule
from loopscope.readout.general.core import Series

FAMILIES = ["ouro", "huginn", "retrofit_llama", "retrofit_olmo", "loop"]
NONLINEAR = FAMILIES[1:]
ROWS = [[5, 9, 1, 60, 33, 2, 17], [7, 8, 30, 4]]


@pytest.fixture(scope="module")
def model_of(golden_model, randomise, llama_config):
    qwen = llama_config | {"architectures": ["Qwen2ForCausalLM"]}

    def build(family, *, dtype=torch.float32, prepare=True):
        if family != "loop":
            return golden_model(family, dtype=dtype, prepare=prepare)
        model = randomise(LayerLoop(LayerLoopConfig.read(qwen, chosen={"loop": "1-2"}))).to(dtype)
        if prepare:
            model.prepare()
        return model

    return build


@pytest.mark.parametrize("family", FAMILIES)
def test_preparing_changes_neither_names_nor_numbers(model_of, family):
    raw, prepared = model_of(family, prepare=False), model_of(family)
    batch = Batch.from_rows(ROWS)
    assert list(raw.state_dict()) == list(prepared.state_dict())
    for name, value in raw.state_dict().items():
        assert torch.equal(value, prepared.state_dict()[name]), name
    with torch.no_grad():
        for t, state in raw.states(batch, [1, 3]).items():
            assert (state - prepared.states(batch, [t])[t]).abs().max() <= 1e-5
            assert (raw.readout(state) - prepared.readout(state)).abs().max() <= 1e-5
    assert not prepared.training
    assert not any(parameter.requires_grad for parameter in prepared.parameters())


def test_prepared_projections_are_views_of_one_matrix(model_of):
    layer = model_of("ouro").model.layers[0]
    joined = layer.self_attn.joined[0]
    assert layer.self_attn.q_proj.weight.data_ptr() == joined.data_ptr()
    assert layer.self_attn.v_proj.weight.data_ptr() == joined[128:].data_ptr()
    assert layer.mlp.up_proj.weight.data_ptr() == layer.mlp.joined[0][160:].data_ptr()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prepared_model_survives_a_change_of_dtype(model_of, family):
    model, batch = model_of(family), Batch.from_rows(ROWS)
    expected = model.states(batch, [2])[2]
    widened = model.double()
    found = widened.states(batch, [2])[2]
    assert found.dtype == torch.float64
    assert (found - expected).abs().max() < 1e-4
    if family in ("ouro", "loop"):
        assert widened.model.layers[0].self_attn.joined[0].dtype == torch.float64


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_bfloat16_models_readout_runs_in_the_dtype_asked_for(model_of, family, dtype):
    model = model_of(family, dtype=torch.bfloat16)
    state = model.states(Batch.from_rows(ROWS), [2])[2]
    assert state.dtype == torch.bfloat16
    with torch.no_grad():
        found = model.readout(state, dtype=dtype)
        assert model.readout(state).dtype == torch.bfloat16
    wide = model_of(family, dtype=torch.bfloat16).to(torch.float64)
    with torch.no_grad():
        expected = wide.readout(state.double())
    assert found.dtype == dtype
    assert (found - expected).abs().max() < (1e-4 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_gradient_after_inference_mode(model_of, family):
    model = model_of(family)
    with torch.inference_mode():
        state = model.states(Batch.from_rows(ROWS), [1])[1]
        model.readout(state, dtype=torch.float64)
    state = state.clone().requires_grad_(True)
    model.readout(state, dtype=torch.float64).square().sum().backward()
    assert state.grad.isfinite().all()


def along(model, family, dtype=torch.float64):
    """A utility along a line of states, with its end points."""
    batch = Batch.from_rows(ROWS)
    start, end = (state.to(dtype) for state in model.states(batch, [1, 2]).values())
    where = torch.tensor([[0, 2], [0, 6], [1, 3]])
    targets = torch.tensor([4, 90, 17])

    def utility(state):
        logits = model.readout(state, where, dtype)
        return torch.log_softmax(logits, dim=-1)[torch.arange(3), targets].sum()

    return utility, start, end - start


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("family", FAMILIES)
def test_second_derivatives_by_reverse_mode_forward_mode_and_series_agree(model_of, family):
    model = model_of(family)
    utility, start, direction = along(model, family)
    alpha = torch.zeros((), dtype=torch.float64, requires_grad=True)
    slope = torch.autograd.grad(utility(start + alpha * direction), alpha, create_graph=True)[0]
    reverse = [slope.item(), torch.autograd.grad(slope, alpha)[0].item()]

    def derivative(function, x):
        return torch.func.jvp(function, (x,), (direction,))[1]

    with torch.no_grad():
        forward = [
            derivative(utility, start).item(),
            derivative(lambda x: derivative(utility, x), start).item(),
        ]
        series = utility(Series.line(start, direction, 2))
    assert forward == pytest.approx(reverse, rel=1e-9)
    assert [series.derivative(1).item(), series.derivative(2).item()] == pytest.approx(reverse, rel=1e-9)
    assert series.derivative(0).item() == pytest.approx(utility(start).item(), rel=1e-12)


class Blender(LoopedModule):
    """A looped model of one's own: the state drifts towards a mixture of earlier positions."""

    family = "blender"
    name = "blender"
    boundary = "the blended state"

    def __init__(self, hidden=8, vocabulary=20):
        super().__init__()
        self.hidden_size, self.vocabulary_size, self.trained_depth = hidden, vocabulary, 3
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.mix = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, vocabulary)

    def embed(self, batch: Batch) -> Context:
        return Context(self.embedding(batch.input_ids), batch)

    def step(self, state, context):
        counts = torch.arange(1, state.shape[1] + 1)[:, None]
        return state + torch.tanh(self.mix(state.cumsum(1) / counts))

    def readout(self, state, positions=None, dtype=None):
        head = self.head
        chosen = select(state, positions).to(dtype or state.dtype)
        return nn.functional.linear(chosen, head.weight_VD.to(chosen.dtype), head.bias_V.to(chosen.dtype))

    @property
    def head(self):
        return AffineHead(self.out.weight, self.out.bias)


def test_a_model_of_ones_own():
    torch.manual_seed(0)
    model = Blender()
    assert isinstance(model, LoopedModel)
    states = model.states(Batch.from_rows([[1, 2, 3], [4, 5]]), [0, 2])
    assert list(states) == [0, 2]
    assert not states[2].requires_grad
    assert model.readout(states[2], torch.tensor([[1, 1]]), torch.float64).shape == (1, 20)
    model.prepare()
    assert (model.device.type, model.dtype) == ("cpu", torch.float32)


@pytest.mark.parametrize("family", FAMILIES)
def test_building_on_the_meta_device_takes_no_memory(model_of, family):
    model = model_of(family, prepare=False)
    with torch.device("meta"):
        empty = type(model)(model.config)
    assert all(value.device.type == "meta" for value in empty.state_dict().values())
    assert list(empty.state_dict()) == list(model.state_dict())
    assert math.prod(empty.lm_head.weight.shape) > 0
