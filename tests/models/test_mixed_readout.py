"""Float32 readouts over BF16 matrices: the matrices stay as they are, the numbers are float32's."""

from __future__ import annotations

import pytest
import torch

from loopscope.kernels import product as split_product
from loopscope.kernels.choice import chosen, implementation, is_differentiating
from loopscope.models.layers.blocks import Linear
from loopscope.readout.general.core import Series

NONLINEAR = ("huginn", "retrofit_llama", "retrofit_olmo")
POSITIONS = torch.tensor([[0, 2], [1, 4], [0, 0]])


@pytest.fixture
def splitting(monkeypatch):
    """As on a device with BF16 tensor cores, with the products in plain float32."""

    def applies(device, impl=None):
        return not is_differentiating() and chosen(impl) != "reference"

    monkeypatch.setattr(split_product, "splits_apply", applies)


@pytest.fixture(params=NONLINEAR)
def model(request, golden_model):
    """A model in BF16."""
    return golden_model(request.param, dtype=torch.bfloat16)


def state_of(model):
    g = torch.Generator().manual_seed(5)
    return torch.randn(2, 5, model.hidden_size, generator=g).to(torch.bfloat16)


def test_matrices_are_shared_and_the_rest_is_cast(splitting, model):
    with torch.no_grad():
        parts = model.in_dtype(model.readout_layers(), torch.float32, mixes=True)
    layers = {id(part.weight) for part in parts.modules() if isinstance(part, Linear)}
    assert layers <= {id(parameter) for parameter in model.parameters()}
    others = [parameter for parameter in parts.parameters() if id(parameter) not in layers]
    assert others
    assert {parameter.dtype for parameter in others} == {torch.float32}


def test_logits_are_as_close_to_float64_as_plain_float32_ones(splitting, model):
    state = state_of(model)
    with torch.no_grad():
        exact = model.readout(state, POSITIONS, torch.float64)
        split = model.readout(state, POSITIONS, torch.float32)
        with implementation("reference"):
            plain = model.readout(state, POSITIONS, torch.float32)
    assert split.dtype == torch.float32
    assert (split - exact).norm() <= 2.0 * (plain - exact).norm() + 1e-6 * exact.norm()


def test_a_series_passes_through(splitting, model):
    state = state_of(model).float()
    with torch.no_grad():
        line = Series.line(state, 0.1 * state.flip(0), 3)
        split = model.readout(line, POSITIONS, torch.float32).coefficients
        with implementation("reference"):
            plain = model.readout(line, POSITIONS, torch.float32).coefficients
    torch.testing.assert_close(split, plain, rtol=1e-4, atol=1e-5)


def test_body_and_head_make_the_readout(model):
    state = state_of(model)
    with torch.no_grad():
        halves = model.body_and_head(torch.float32)
        hidden = halves.body(state, POSITIONS)
        assert hidden.shape == (3, model.hidden_size)
        assert torch.equal(halves.head(hidden), model.readout(state, POSITIONS, torch.float32))
        assert halves.head(hidden).shape[1] == halves.vocabulary == model.vocabulary_size
