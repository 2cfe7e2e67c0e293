"""Interval arithmetic holds exact results, keeps exact zeros, and gives up where an end is not known."""

import math

import torch
from flint import arb, ctx
from hypothesis import given, settings
from hypothesis import strategies as st

from loopscope.readout.certified.intervals import Interval, mean_of_segments, total

numbers = st.floats(allow_nan=False, allow_infinity=False, width=64)


def exactly(x: float) -> Interval:
    return Interval.point(torch.tensor([x], dtype=torch.float64))


def holds(found: Interval, exact: arb) -> bool:
    low, high = float(found.low), float(found.high)
    return (low == -math.inf or bool(arb(low) <= exact)) and (high == math.inf or bool(exact <= arb(high)))


@given(numbers, numbers)
@settings(max_examples=300, deadline=None)
def test_operations_hold_the_exact_result(x: float, y: float):
    with ctx.workprec(5000):
        assert holds(exactly(x) + exactly(y), arb(x) + arb(y))
        assert holds(exactly(x) - exactly(y), arb(x) - arb(y))
        assert holds(exactly(x) * exactly(y), arb(x) * arb(y))
        assert holds(exactly(x).square(), arb(x) * arb(x))
        if y:
            assert holds(exactly(x) / exactly(y), arb(x) / arb(y))
        assert holds(exactly(abs(x)).sqrt(), arb(abs(x)).sqrt())


@given(st.lists(numbers.filter(lambda x: abs(x) < 1e300), min_size=1, max_size=40))
@settings(max_examples=200, deadline=None)
def test_sums_and_means_hold_the_exact_result(values: list[float]):
    parts = Interval.point(torch.tensor(values, dtype=torch.float64))
    with ctx.workprec(5000):
        exact = sum((arb(x) for x in values), arb(0))
        assert holds(total(parts, 0), exact)
        assert holds(mean_of_segments(parts, torch.tensor([len(values)])), exact / len(values))


def test_exact_zeros_stay():
    zero, one = exactly(0.0), exactly(1.0)
    for found in (zero + zero, one - one, zero * exactly(1e308), zero / one, zero.square(), zero.sqrt()):
        assert found.low.tolist() == found.high.tolist() == [0.0]
    assert zero.expm1().high.tolist() == zero.log1p().low.tolist() == one.log().high.tolist() == [0.0]


def test_what_is_not_known_is_unbounded():
    whole = Interval(torch.tensor([-math.inf]), torch.tensor([math.inf]))
    one = exactly(1.0)
    for found in (whole - whole, one / Interval(-one.low, one.high), exactly(math.inf) * Interval(-one.low, one.high)):
        assert (found.low.tolist(), found.high.tolist()) == ([-math.inf], [math.inf])
