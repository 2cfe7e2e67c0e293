"""How a rule of Taylor mode is checked: against nested forward mode, to the fourth order, in float64."""

from __future__ import annotations

import pytest
import torch

from loopscope.readout.autograd import nested_derivatives
from loopscope.readout.general.core import Series

ORDER = 4


@pytest.fixture
def line():
    """A base and a direction, [2, 3, 4] each."""
    g = torch.Generator().manual_seed(11)
    return [torch.randn(2, 3, 4, generator=g, dtype=torch.float64) for _ in range(2)]


@pytest.fixture
def agrees_with_nesting(line):
    """Assert that a function of a series has the derivatives that nested forward mode finds."""

    def check(function):
        series = function(Series.line(*line, ORDER))
        expected = nested_derivatives(function, *line, ORDER)
        assert series.shape == expected[0].shape
        for k, derivative in enumerate(expected):
            scale = derivative.abs().max().clamp(min=1.0)
            assert float((series.derivative(k) - derivative).abs().max() / scale) < 1e-11, k

    return check
