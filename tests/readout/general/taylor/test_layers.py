"""Rules for linear maps, products and reductions, each against nested forward mode in float64."""

from __future__ import annotations

import math

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


# Each takes x of shape [2, 3, 4]. A test below asks that no rule of the file is left out.
CASES = {
    "linear": lambda x: functional.linear(x * x, W.T, BIAS),
    "matmul": lambda x: (x * x) @ W + _ones(2, 3, 3) @ (x @ W) + x @ x.transpose(1, 2) @ (x @ W),
    "matmul-vectors": lambda x: (x * x) @ W[:, 0] + K[0, 0] @ x.mT + K[0] @ x[0, 0],
    "matmul-batched": lambda x: (x * x)[0] @ K.mT + K @ x[1].mT,
    "mm": lambda x: torch.mm(x[0], W),
    "bmm": lambda x: torch.bmm(x, K.mT * 2.0),
    "mv": lambda x: torch.mv(x[0], x[1, 1]),
    "dot": lambda x: torch.dot(x[0, 0], x[1, 1]),
    "addmm": lambda x: torch.addmm(_ones(3, 6), x[0] * x[0], W, beta=0.5, alpha=2.0),
    "einsum": lambda x: torch.einsum("bij,jk->bik", x * x, W) @ torch.einsum("bik,bij->bkj", x @ W, x),
    "sum": lambda x: (x * x).sum() + (x * x).sum(-1) + torch.sum(x, dim=(0, 1), keepdim=True)[..., :3][0],
    "mean": lambda x: (x * x).mean() + torch.mean(x * x, dim=-1, keepdim=True),
    "cumsum": lambda x: torch.cumsum(x * x, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_rule_agrees_with_nested_forward_mode(name, agrees_with_nesting):
    agrees_with_nesting(CASES[name])


def test_every_rule_is_exercised(rules_without_a_case):
    assert rules_without_a_case("linear", CASES.values()) == set()


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


MASK = torch.tensor([[True, False, True, True], [False, True, True, False], [True, True, False, True]])


# Each takes x of shape [2, 3, 4]. A test below asks that no rule of the file is left out.
CASES_normalise = {
    "rms_norm": lambda x: functional.rms_norm(x * x, (4,), K[0, 0], 1e-5) + functional.rms_norm(x, (3, 4)),
    "layer_norm": lambda x: functional.layer_norm(x * x, (4,), K[0, 0], K[0, 1], 1e-5),
    "softmax": lambda x: torch.softmax(4.0 * x * x, -1) + functional.softmax(x, dim=1) + x.softmax(0),
    "softmax-masked": lambda x: torch.softmax((x * x).masked_fill(MASK, -math.inf), -1),
    "log_softmax": lambda x: torch.log_softmax(4.0 * x * x, -1) + functional.log_softmax(x, dim=1),
    "logsumexp": lambda x: torch.logsumexp(3.0 * x * x, -1) + torch.logsumexp(x, 2, keepdim=True)[..., 0],
    "special_logsumexp": lambda x: torch.special.logsumexp(x * x, -1),
}


def test_normalise_every_rule_is_exercised(rules_without_a_case):
    assert rules_without_a_case("normalise", CASES_normalise.values()) == set()


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


def test_blocks_every_rule_is_exercised(rules_without_a_case):
    assert rules_without_a_case("blocks", CASES_blocks.values()) == set()
