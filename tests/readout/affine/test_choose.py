"""The table of ways: every name can be asked for, answers agree, and a path says who answered."""

from __future__ import annotations

import pytest
import torch

from loopscope import LoopscopeError, affine_path, affine_path_from_states
from loopscope.readout.affine.choose import IMPLEMENTATIONS, WAYS

GRID = [k / 20 for k in range(21)]
ODD = [0.1, 0.35, 0.9]
HERE = [name for name in IMPLEMENTATIONS if name not in ("fused", "fp64_kernel")]


@pytest.fixture
def logits():
    g = torch.Generator().manual_seed(3)
    return torch.randn(9, 37, generator=g).double() * 3, torch.randn(9, 37, generator=g).double(), list(range(9))


@pytest.mark.parametrize("impl", HERE)
@pytest.mark.parametrize("scales", [GRID, ODD], ids=["even", "odd"])
def test_every_way_gives_what_autograd_gives(logits, impl, scales):
    z0, v, y = logits
    z = z0 + torch.tensor(scales, dtype=torch.float64)[:, None, None] * v
    exact = (torch.log_softmax(z, -1) - torch.log_softmax(z0, -1))[:, range(9), y].mean(1)
    found = affine_path(z0, v, y, impl=impl).derivatives(scales, 2)
    torch.testing.assert_close(found.value, exact, rtol=1e-12, atol=1e-14)
    paper = affine_path(z0, v, y, impl="autograd").derivatives(scales, 2)
    torch.testing.assert_close(found.stack, paper.stack, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(
    ("impl", "on_grid", "elsewhere"),
    [
        ("auto", "even", "moments"),
        ("even", "even", "moments"),
        ("moments", "moments", "moments"),
        ("reference", "reference", "reference"),
        ("autograd", "autograd", "autograd"),
    ],
)
def test_a_path_says_which_way_it_took(logits, impl, on_grid, elsewhere):
    z0, v, y = logits
    grid, odd, survey = (affine_path(z0, v, y, impl=impl) for _ in range(3))
    grid.value(GRID)
    odd.value(ODD)
    survey.survey(21, (0.0,), 2)
    assert (grid.ways_taken, odd.ways_taken, survey.ways_taken) == ({on_grid}, {elsewhere}, {on_grid})


def test_a_way_that_cannot_be_had_is_refused(logits):
    z0, v, y = logits
    with pytest.raises(LoopscopeError, match="impl='even' is the same"):
        affine_path(z0, v, y, impl="fp64_kernel")
    h = torch.zeros(2, 4, dtype=torch.bfloat16)
    head = torch.zeros(5, 4, dtype=torch.bfloat16)
    for dtype in (torch.float32, torch.float64):
        with pytest.raises(LoopscopeError, match="CUDA"):
            affine_path_from_states(h, h, head, None, [0, 1], impl="fused", dtype=dtype)
    with pytest.raises(LoopscopeError, match="fused"):
        affine_path(z0, v, y, impl="fused")


def test_the_table_says_what_each_is_for():
    assert all(way.purpose and way.cost and way.name == name for name, way in WAYS.items())
