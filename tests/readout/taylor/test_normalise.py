"""Rules for norms and softmax, each against nested forward mode in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from loopscope.readout.taylor import Series

G = torch.Generator().manual_seed(7)


def _randn(*shape):
    return torch.randn(*shape, generator=G, dtype=torch.float64)


K = _randn(2, 3, 4)
MASK = torch.tensor([[True, False, True, True], [False, True, True, False], [True, True, False, True]])


# Each takes x of shape [2, 3, 4]. A test below asks that no rule of the file is left out.
CASES = {
    "rms_norm": lambda x: functional.rms_norm(x * x, (4,), K[0, 0], 1e-5) + functional.rms_norm(x, (3, 4)),
    "layer_norm": lambda x: functional.layer_norm(x * x, (4,), K[0, 0], K[0, 1], 1e-5),
    "softmax": lambda x: torch.softmax(4.0 * x * x, -1) + functional.softmax(x, dim=1) + x.softmax(0),
    "softmax-masked": lambda x: torch.softmax((x * x).masked_fill(MASK, -math.inf), -1),
    "log_softmax": lambda x: torch.log_softmax(4.0 * x * x, -1) + functional.log_softmax(x, dim=1),
    "logsumexp": lambda x: torch.logsumexp(3.0 * x * x, -1) + torch.logsumexp(x, 2, keepdim=True)[..., 0],
    "special_logsumexp": lambda x: torch.special.logsumexp(x * x, -1),
}


@pytest.mark.parametrize("name", CASES)
def test_rule_agrees_with_nested_forward_mode(name, agrees_with_nesting):
    agrees_with_nesting(CASES[name])


def test_every_rule_is_exercised(rules_without_a_case):
    assert rules_without_a_case("normalise", CASES.values()) == set()


def test_softmax_loses_no_digits_to_a_common_drift():
    base = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)
    spread = torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)
    still = torch.softmax(Series.line(base, spread, 3), -1).coefficients
    adrift = torch.softmax(Series.line(base, spread + 2.0**30, 3), -1).coefficients
    assert float((still - adrift).abs().max()) < 1e-12
