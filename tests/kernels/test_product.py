"""Split products: two FP16 numbers are one float32 number, FP16 holds a BF16 matrix, and the product is float32's."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from loopscope.kernels import product as module
from loopscope.kernels.product import forget_halves, halved, mixed_linear, split

SHAPES = [(1, 1, 1), (5, 33, 17), (7, 2049, 5), (3, 17920, 2)]
numbers = st.floats(width=32, min_value=-(2.0**100), max_value=2.0**100, allow_subnormal=False)
matrices = st.floats(min_value=2.0**-15, max_value=2.0**15).map(lambda x: float(torch.tensor(x).bfloat16()))


def joined(x: torch.Tensor) -> torch.Tensor:
    """The numbers that the terms of some rows stand for."""
    terms_2MK, unit_M = split(x)
    return terms_2MK.double().sum(0) * unit_M.double().unsqueeze(1)


@given(st.lists(numbers, min_size=1, max_size=20))
def test_the_sum_is_the_number_itself(values):
    x = torch.tensor([values], dtype=torch.float32)
    lost = (joined(x) - x.double()).abs()
    allowed = torch.maximum(2.0**-23 * x.double().abs(), 2.0**-39 * x.double().abs().amax())
    assert (lost <= allowed.clamp(min=2.0**-149)).all()


def test_rows_are_scaled_by_powers_of_two_of_their_own():
    x = torch.randn(50, 40, generator=torch.Generator().manual_seed(0)) * torch.logspace(-30, 30, 50)[:, None]
    (lo, hi), unit_M = split(x)
    assert torch.equal(torch.frexp(unit_M).mantissa, torch.full((50,), 0.5))
    largest = hi.double().abs().amax(1)
    assert ((largest >= 2.0**14) & (largest <= 2.0**15)).all()
    assert (lo.double().abs() <= torch.maximum(hi.double().abs() * 2.0**-11, torch.tensor(2.0**-25))).all()


def test_extremes():
    for value in (math.inf, -math.inf, math.nan):
        assert not joined(torch.tensor([[value, 1.0]])).isfinite()[0, 0]
    x = torch.tensor([[0.0, 0.0], [2.0**-126, -(2.0**-120)], [3.4e38, -1e38]])
    torch.testing.assert_close(joined(x), x.double(), rtol=2.0**-23, atol=0.0)


@given(st.lists(matrices, min_size=1, max_size=20))
def test_a_matrix_is_held_exactly(values):
    weight = torch.tensor([values]).bfloat16()
    matrix_NK, unit_N = halved(weight)
    assert torch.equal(matrix_NK.double() * unit_N.double().unsqueeze(1), weight.double())


def test_a_matrix_is_halved_once_and_again_when_it_changes():
    weight = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).bfloat16()

    def is_held(part):
        matrix_NK, unit_N = halved(part)
        return torch.equal(matrix_NK.float() * unit_N[:, None], part.float())

    first = halved(weight)[0]
    assert halved(weight)[0].data_ptr() == first.data_ptr()
    assert halved(weight[2:5])[0].data_ptr() == first[2:5].data_ptr()
    assert all(map(is_held, (weight, weight[2:5], weight.T, weight[:, 1:3], weight[::2])))
    weight[0] *= 3.0
    assert is_held(weight)
    weight.data[1] *= 3.0
    forget_halves([weight])
    assert is_held(weight)


@pytest.fixture
def splitting(monkeypatch):
    monkeypatch.setattr(module, "splits_apply", lambda *_: True)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("spread", [0.0, 3.0])
def test_no_worse_than_a_float32_product(splitting, factors, error, shape, spread):
    x, weight = factors(*shape, spread)
    allowed = max(1.2 * error(x @ weight.float().T, x, weight), 2.0**-23)
    assert error(mixed_linear(x, weight), x, weight) <= allowed


def test_leading_axes_a_bias_and_no_rows(splitting, factors):
    x, weight = factors(6, 32, 5)
    bias = torch.arange(5.0).to(torch.bfloat16)
    with torch.no_grad():
        found = mixed_linear(x.reshape(2, 3, 32), weight, bias)
        assert mixed_linear(x[:0], weight).shape == (0, 5)
        assert torch.equal(mixed_linear(x.double(), weight), functional.linear(x.double(), weight.double()))
    torch.testing.assert_close(found, (x @ weight.float().T + bias.float()).reshape(2, 3, 5))


@pytest.mark.parametrize("impl", ["auto", "triton"])
def test_gradients_flow_through_the_plain_product(factors, impl):
    x, weight = factors(4, 30, 6)
    x.requires_grad_(True)
    (found,) = torch.autograd.grad(mixed_linear(x, weight, impl=impl).sum(), x)
    torch.testing.assert_close(found, weight.float().sum(0).expand(4, 30))


def test_a_product_through_the_interpreter(through_the_interpreter):
    through_the_interpreter(__file__.replace(".py", "_kernel.py") + "::test_the_choice_triton_takes_the_kernels", 1)


@pytest.mark.slow
def test_every_kernel_through_the_interpreter(through_the_interpreter):
    through_the_interpreter(__file__.replace(".py", "_kernel.py"), 11)
