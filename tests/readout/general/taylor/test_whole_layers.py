"""Rules for linear maps, products and reductions, each against nested forward mode in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from loopscope.models.layers.blocks import gated_silu_joined
from loopscope.models.layers.rope import Rotary, rotate_own
from loopscope.readout.general.taylor import Series

G = torch.Generator().manual_seed(7)


def _randn(*shape):
    return torch.randn(*shape, generator=G, dtype=torch.float64)


def _ones(*shape):
    return torch.ones(*shape, dtype=torch.float64)


W = _randn(4, 6)
K = _randn(2, 3, 4)
BIAS = _randn(6)


def heads(x):
    """[2, 3, 4] as two heads of width two: [2, heads, 3, 2]."""
    return x.unflatten(-1, (2, 2)).transpose(1, 2)


class _Products(TorchDispatchMode):
    """Notes the shape of every matrix product that is really taken."""

    def __init__(self):
        super().__init__()
        self.taken = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if "mm" in func.__name__:
            self.taken.append(tuple(out.shape))
        return out


def test_one_product_serves_all_coefficients(line):
    with _Products() as products:
        functional.linear(Series.line(*line, 3), W.T)
    assert products.taken == [(4 * 2 * 3, 6)]


def test_softmax_loses_no_digits_to_a_common_drift():
    base = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)
    spread = torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)
    still = torch.softmax(Series.line(base, spread, 3), -1).coefficients
    adrift = torch.softmax(Series.line(base, spread + 2.0**30, 3), -1).coefficients
    assert float((still - adrift).abs().max()) < 1e-12


POSITIONS = torch.tensor([[0, 3, 8], [5, 1, 0]])
BIAS_blocks = torch.tensor([[0.3, -0.2, 1.0, 0.5]], dtype=torch.float64)


def _turned(x, layout, bias=None):
    tables = Rotary(4, 100.0, layout).tables(POSITIONS, torch.float64)
    # A fresh tensor, because the operation may write into its input.
    return rotate_own((x * x).reshape(2, 3, 1, 4), tables, bias)


# Each takes x of shape [2, 3, 4]. A test below asks that no rule of the file is left out.
CASES_blocks = {
    "gated_silu_joined": lambda x: gated_silu_joined(3.0 * x * x - x, plain=True),
    "rotate_own-half": lambda x: _turned(x, "half"),
    "rotate_own-interleaved": lambda x: _turned(x, "interleaved", BIAS_blocks),
}


@pytest.mark.parametrize("name", CASES_blocks)
def test_rule_agrees_with_nested_forward_mode(name, agrees_with_nesting):
    agrees_with_nesting(CASES_blocks[name])
