"""State diagnostics: the norms of a small update, exactly where the states are float64 and as before where not."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor

from loopscope.measuring.update import squared_norms


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
