"""Three BF16 numbers are one float32 number."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loopscope.kernels.split_product import split

normal = st.floats(width=32, min_value=2.0**-110, max_value=2.0**127)


@given(st.lists(normal.flatmap(lambda x: st.sampled_from([x, -x])), min_size=1, max_size=20))
def test_the_sum_is_the_number_itself(values):
    x = torch.tensor(values, dtype=torch.float32)
    assert torch.equal(split(x).double().sum(0), x.double())


@given(st.floats(width=32, min_value=-(2.0**-110), max_value=2.0**-110))
def test_tiny_numbers_lose_less_than_bf16_can_hold(value):
    x = torch.tensor([value], dtype=torch.float32)
    assert abs(float(split(x).double().sum(0) - x.double())) <= 2.0**-134


def test_each_term_is_at_most_an_eighth_bit_of_the_next():
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    lo, mid, hi = split(x).double().abs()
    assert (mid <= hi * 2.0**-8).all()
    assert (lo <= hi * 2.0**-16).all()


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 3.4e38])
def test_what_is_not_finite_in_bf16_does_not_come_out_finite(value):
    assert not split(torch.tensor([value])).float().sum(0).isfinite().any()
