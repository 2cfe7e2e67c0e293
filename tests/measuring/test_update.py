"""The quadratic scale on a device is that of `loopscope.path`, to the bit; the norms of a small
update are exact where the states are float64.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from loopscope.measuring.update import Update, predicted_scale, state_change
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


def changes(h: Tensor, h_plus: Tensor) -> list[Tensor]:
    """What `state_change` gives of one question for each row."""
    rows = torch.ones(len(h), dtype=torch.int64)
    batch: Any = SimpleNamespace(attention_mask=torch.ones(h.shape[:2], dtype=torch.bool))
    layout: Any = SimpleNamespace(batch=batch, sequences_B=rows)
    return list(state_change(Update(layout, h, h_plus)))


def exact_change(h_SD: Tensor, h_plus_SD: Tensor) -> list[float]:
    """‖D‖, ‖D‖ / ‖H‖ and 1 − cos of one row in rational arithmetic, up to the roots."""
    a, b = ([Fraction(x) for x in state.flatten().tolist()] for state in (h_SD, h_plus_SD))
    aa, bb, dd, ab = (
        sum(x * y for x, y in zip(*pair, strict=True))
        for pair in ((a, a), (b, b), *[([y - x for x, y in zip(a, b, strict=True)],) * 2], (a, b))
    )
    root = Decimal(aa.numerator * bb.numerator) / Decimal(aa.denominator * bb.denominator)
    cosine = Decimal(ab.numerator) / Decimal(ab.denominator) / root.sqrt()
    return [math.sqrt(dd), math.sqrt(dd / aa), float(1 - cosine)]


@pytest.mark.parametrize("size", [1.0, 1e-4, 1e-7])
@torch.no_grad()
def test_float64_states_keep_their_digits(size: float) -> None:
    g = torch.Generator().manual_seed(2)
    h = torch.randn(9, 2, 64, generator=g, dtype=torch.float64)
    h_plus = h + size * torch.randn(h.shape, generator=g, dtype=torch.float64)
    found = changes(h, h_plus)
    with localcontext(prec=80):
        for row in (0, 8):
            norm, relative, cosine = exact_change(h[row], h_plus[row])
            assert [float(each[row]) for each in found[:2]] == pytest.approx([norm, relative], rel=1e-12)
            assert float(found[2][row]) == pytest.approx(cosine, rel=1e-12 / size)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@torch.no_grad()
def test_differences_and_squares_of_narrower_states_are_float32(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(2)
    h, h_plus = (torch.randn(9, 2, 64, generator=g).to(dtype) for _ in range(2))
    squares = (h_plus.float() - h.float()).square().double().sum(-1)
    assert torch.equal(changes(h, h_plus)[0], (squares[:, 0] + squares[:, 1]).sqrt())
