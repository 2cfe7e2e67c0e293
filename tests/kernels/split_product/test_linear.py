"""The split product against float64, and where it is taken."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from loopscope.kernels import split_product as module
from loopscope.kernels.split_product import mixed_linear, split, splits_apply

SHAPES = [(1, 1, 1), (1, 16, 3), (5, 33, 17), (16, 768, 8), (7, 2049, 5), (3, 17920, 2)]


def error(found, x, weight):
    """Root mean square of the error, in units of Σ |x||w|."""
    exact, scale = x.double() @ weight.double().T, x.double().abs() @ weight.double().abs().T
    return float(((found.double() - exact) / scale).square().mean().sqrt())


@pytest.mark.parametrize("spread", [0.0, 3.0], ids=["even", "spread"])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), SHAPES)
def test_no_worse_than_a_float32_product(factors, monkeypatch, rows, inputs, outputs, spread):
    monkeypatch.setattr(module, "splits_apply", lambda *_: True)
    x, weight = factors(rows, inputs, outputs, spread)
    found, plain = mixed_linear(x, weight), x @ weight.float().T
    assert error(found, x, weight) <= max(1.2 * error(plain, x, weight), 2.0**-23)


@pytest.mark.parametrize(("rows", "inputs", "outputs"), SHAPES)
def test_terms_lose_less_than_a_float32_product(factors, rows, inputs, outputs):
    x, weight = factors(rows, inputs, outputs, 3.0)
    terms, unit = split(x)
    summed = (terms.double() @ weight.double().T).sum(0) * unit.double().unsqueeze(1)
    assert error(summed, x, weight) <= max(0.7 * error(x @ weight.float().T, x, weight), 2.0**-23)


def _cut_off(x):
    """To float32 towards zero, as tensor cores do it."""
    exponent = torch.frexp(x).exponent
    return torch.ldexp(torch.trunc(torch.ldexp(x, 24 - exponent)), exponent - 24)


def _by_tensor_core(x, weight):
    """Sixteen products at a time join a sum that is cut off each time."""
    total = torch.zeros(x.shape[0], weight.shape[0], dtype=torch.float64)
    for start in range(0, x.shape[1], 16):
        here = slice(start, start + 16)
        total = _cut_off(total + x[:, here].double() @ weight[:, here].double().T)
    return total


def _one_by_one(x, weight):
    """A float32 sum, rounded after every product."""
    total = torch.zeros(x.shape[0], weight.shape[0])
    for i in range(x.shape[1]):
        total = (total.double() + torch.outer(x[:, i].double(), weight[:, i].double())).float()
    return total


@pytest.mark.parametrize("inputs", [5280, 17920])
def test_blocks_undo_the_drift_of_tensor_cores(factors, inputs):
    x, weight = factors(8, inputs, 32)
    (lo, hi), unit = split(x)
    whole = (_by_tensor_core(lo, weight) + _by_tensor_core(hi, weight)) * unit.unsqueeze(1)
    total = torch.zeros(8, 32)
    for start in range(0, inputs, 64):
        here = slice(start, start + 64)
        total += sum(_by_tensor_core(term[:, here], weight[:, here]) for term in (lo, hi)).float()
    plain = error(_one_by_one(x, weight), x, weight)
    assert error(total.double() * unit.unsqueeze(1), x, weight) < plain < 0.3 * error(whole, x, weight)


def test_on_a_cpu_the_matrix_is_cast(factors):
    x, weight = factors(4, 30, 6)
    with torch.no_grad():
        assert not splits_apply(x.device)
        assert torch.equal(mixed_linear(x, weight), functional.linear(x, weight.float()))


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
