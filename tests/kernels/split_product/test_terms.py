"""Two FP16 numbers are one float32 number of a row, and FP16 holds a BF16 matrix."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loopscope.kernels.product import forget_halves, halved, split

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


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_does_not_come_out_finite(value):
    assert not joined(torch.tensor([[value, 1.0]])).isfinite()[0, 0]


def test_nothing_and_the_smallest_numbers_stay():
    x = torch.tensor([[0.0, 0.0], [2.0**-126, -(2.0**-120)], [3.4e38, -1e38]])
    torch.testing.assert_close(joined(x), x.double(), rtol=2.0**-23, atol=0.0)


@given(st.lists(matrices, min_size=1, max_size=20))
def test_a_matrix_is_held_exactly(values):
    weight = torch.tensor([values]).bfloat16()
    matrix_NK, unit_N = halved(weight)
    assert torch.equal(matrix_NK.double() * unit_N.double().unsqueeze(1), weight.double())


def test_a_matrix_is_halved_once_and_again_when_it_changes():
    weight = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    first = halved(weight)
    assert halved(weight).matrix_NK.data_ptr() == first.matrix_NK.data_ptr()
    part = halved(weight[2:5])
    assert part.matrix_NK.data_ptr() == first.matrix_NK[2:5].data_ptr()
    assert torch.equal(part.unit_N, first.unit_N[2:5])
    weight[0] *= 3.0
    assert torch.equal(halved(weight).matrix_NK.float() * halved(weight).unit_N[:, None], weight.float())
    weight.data[1] *= 3.0
    forget_halves([weight])
    assert torch.equal(halved(weight).matrix_NK.float() * halved(weight).unit_N[:, None], weight.float())


@pytest.mark.parametrize("cut", [lambda w: w.T, lambda w: w[:, 1:3], lambda w: w[::2]])
def test_other_parts_of_a_matrix_are_halved_as_they_come(cut):
    weight = cut(torch.randn(6, 6, generator=torch.Generator().manual_seed(0)).bfloat16())
    matrix_NK, unit_N = halved(weight)
    assert torch.equal(matrix_NK.float() * unit_N[:, None], weight.float())
