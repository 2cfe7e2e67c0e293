"""The split product against float64, and where it is taken."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from loopscope.kernels import product as module
from loopscope.kernels.product import mixed_linear, split

SHAPES = [(1, 1, 1), (1, 16, 3), (5, 33, 17), (16, 768, 8), (7, 2049, 5), (3, 17920, 2)]


def error(found, x, weight):
    """Root mean square of the error, in units of Σ |x||w|."""
    exact, scale = x.double() @ weight.double().T, x.double().abs() @ weight.double().abs().T
    return float(((found.double() - exact) / scale).square().mean().sqrt())


@pytest.mark.parametrize("shape", SHAPES)
def test_no_worse_than_a_float32_product(factors, monkeypatch, shape):
    monkeypatch.setattr(module, "splits_apply", lambda *_: True)
    for spread in (0.0, 3.0):
        x, weight = factors(*shape, spread)
        found, plain = mixed_linear(x, weight), error(x @ weight.float().T, x, weight)
        assert error(found, x, weight) <= max(1.2 * plain, 2.0**-23)
    terms, unit = split(x)
    summed = (terms.double() @ weight.double().T).sum(0) * unit.double().unsqueeze(1)
    assert error(summed, x, weight) <= max(0.7 * plain, 2.0**-23)


def test_float64_is_never_split(factors, monkeypatch):
    monkeypatch.setattr(module, "splits_apply", lambda *_: True)
    x, weight = factors(4, 30, 6)
    with torch.no_grad():
        assert torch.equal(mixed_linear(x.double(), weight), functional.linear(x.double(), weight.double()))


@pytest.mark.parametrize("impl", ["auto", "triton"])
def test_gradients_flow_through_the_plain_product(factors, impl):
    x, weight = factors(4, 30, 6)
    x.requires_grad_(True)
    (found,) = torch.autograd.grad(mixed_linear(x, weight, impl=impl).sum(), x)
    torch.testing.assert_close(found, weight.float().sum(0).expand(4, 30))


def test_any_number_of_leading_axes_and_a_bias(factors, monkeypatch):
    monkeypatch.setattr(module, "splits_apply", lambda *_: True)
    x, weight = factors(6, 32, 5)
    bias = torch.arange(5.0).to(torch.bfloat16)
    with torch.no_grad():
        found = mixed_linear(x.reshape(2, 3, 32), weight, bias)
    torch.testing.assert_close(found, (x @ weight.float().T + bias.float()).reshape(2, 3, 5))


def test_no_rows_give_no_rows(factors):
    _, weight = factors(1, 32, 5)
    with torch.no_grad():
        assert mixed_linear(torch.empty(0, 32), weight).shape == (0, 5)
