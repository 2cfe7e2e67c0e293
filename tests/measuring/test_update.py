"""The quadratic scale on a device is that of `loopscope.path`, to the bit; the norms of a small
update are exact where the states are float64.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from loopscope.measuring.update import predicted_scale, squared_norms
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


def exact_norms(h_D: Tensor, h_plus_D: Tensor) -> list[float]:
    """‖H‖², ‖H⁺‖², ‖D‖² of one position in rational arithmetic."""
    a, b = ([Fraction(x) for x in state.tolist()] for state in (h_D, h_plus_D))
    return [float(sum(x * x for x in part)) for part in (a, b, [y - x for x, y in zip(a, b, strict=True)])]


@pytest.mark.parametrize("size", [1.0, 1e-7, 1e-12])
@torch.no_grad()
def test_float64_states_keep_their_digits(size: float) -> None:
    g = torch.Generator().manual_seed(2)
    h = torch.randn(9, 2, 64, generator=g, dtype=torch.float64)
    h_plus = h + size * torch.randn(h.shape, generator=g, dtype=torch.float64)
    found = squared_norms(h, h_plus)
    for row, position in ((0, 0), (8, 1)):
        expected = exact_norms(h[row, position], h_plus[row, position])
        assert found[:, row, position].tolist() == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@torch.no_grad()
def test_differences_and_squares_of_narrower_states_are_float32(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(2)
    h, h_plus = (torch.randn(9, 2, 64, generator=g).to(dtype) for _ in range(2))
    d = h_plus.float() - h.float()
    expected = torch.stack([x.square().double().sum(-1) for x in (h.float(), h_plus.float(), d)])
    assert torch.equal(squared_norms(h, h_plus), expected)
