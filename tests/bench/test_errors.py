"""Errors beside errors: the ratio, and the interval that says whether it is chance."""

from __future__ import annotations

import pytest
import torch

from loopscope.bench.clock import error_of


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
