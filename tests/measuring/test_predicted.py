"""The quadratic scale on a device is that of `loopscope.path`, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loopscope.measuring.update import predicted_scale
from loopscope.path import predicted_scale as on_the_host

TINY, HUGE = 5e-324, 1.7e308
EDGES = [0.0, -0.0, TINY, -TINY, 1e-310, -1e-310, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 1e300, -1e300, HUGE, -HUGE]


def same(slope: np.ndarray, quadratic: np.ndarray) -> None:
    found = predicted_scale(torch.from_numpy(slope), torch.from_numpy(quadratic)).numpy()
    expected = np.atleast_1d(on_the_host(slope, quadratic))
    np.testing.assert_array_equal(found.view(np.int64), expected.view(np.int64))


def test_every_pair_of_edges() -> None:
    slope, quadratic = np.meshgrid(EDGES, EDGES)
    same(slope.reshape(-1), quadratic.reshape(-1))


def test_around_the_clip() -> None:
    quadratic = -np.linspace(1e-3, 3.0, 1000)
    for shift in (-np.inf, 0.0, np.inf):
        slope = -2.0 * quadratic if shift == 0.0 else np.nextafter(-2.0 * quadratic, shift)
        same(slope, quadratic)


@given(st.lists(st.tuples(*[st.floats(allow_nan=False, allow_infinity=False)] * 2), min_size=1, max_size=20))
def test_any_finite_coefficients(pairs: list[tuple[float, float]]) -> None:
    slope, quadratic = (np.array(column) for column in zip(*pairs, strict=True))
    same(slope, quadratic)


@pytest.mark.parametrize("slope", [np.inf, -np.inf, 1.0])
@pytest.mark.parametrize("quadratic", [np.inf, -np.inf, -1.0])
def test_infinities_stay_in_the_unit_interval(slope: float, quadratic: float) -> None:
    scale = predicted_scale(torch.tensor([slope]), torch.tensor([quadratic]))
    assert 0.0 <= float(scale) <= 1.0
