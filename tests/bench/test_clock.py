"""The clock takes turns and warms up; errors have a ratio, and an interval that says whether it is chance."""

from __future__ import annotations

import time

import pytest
import torch

from loopscope.bench.clock import Clock, error_of


def test_calls_take_turns_after_their_warm_up():
    order: list[str] = []
    found = Clock(torch.device("cpu")).race({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 3)
    assert "".join(order) == "ab" * 4
    assert [found[name].repeats for name in "ab"] == [3, 3]


def test_a_call_takes_as_long_as_it_takes():
    found = Clock(torch.device("cpu")).race({"nap": lambda: time.sleep(0.02)}, 2, warm_ups=0)["nap"]
    assert 0.02 <= found.low <= found.value <= found.high < 2.0


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_root_mean_square_largest_and_their_ratios():
    exact = torch.tensor([1.0, 2.0], dtype=torch.float64)
    found = error_of("q", exact, exact + torch.tensor([3e-3, 4e-3]), exact + torch.tensor([0.0, 5e-3]))
    assert found.ours_rms == pytest.approx(12.5e-6**0.5)
    assert found.rms_ratio == pytest.approx(1.0)
    assert found.max_ratio == pytest.approx(0.8)
    assert found.size == pytest.approx(2.5**0.5)


def test_equally_large_errors_are_not_told_apart():
    exact = normal(0, 300, 5)
    found = error_of("q", exact, exact + normal(1, 300, 5), exact + normal(2, 300, 5))
    assert found.low < 1.0 < found.high
    assert found.low < found.rms_ratio < found.high


def test_twice_the_error_is():
    exact = normal(0, 300, 5)
    found = error_of("q", exact, exact + 2 * normal(1, 300, 5), exact + normal(2, 300, 5))
    assert 1.7 < found.low < 2.0 < found.high < 2.3
