"""Rules for operations that models name themselves, against nested forward mode in float64."""

from __future__ import annotations

import pytest
import torch

from loopscope.models.activation import gated_silu_joined
from loopscope.models.rope import Rotary, rotate_own

POSITIONS = torch.tensor([[0, 3, 8], [5, 1, 0]])
BIAS = torch.tensor([[0.3, -0.2, 1.0, 0.5]], dtype=torch.float64)


def _turned(x, layout, bias=None):
    tables = Rotary(4, 100.0, layout).tables(POSITIONS, torch.float64)
    # A fresh tensor, because the operation may write into its input.
    return rotate_own((x * x).reshape(2, 3, 1, 4), tables, bias)


# Each takes x of shape [2, 3, 4]. A test below asks that no rule of the file is left out.
CASES = {
    "gated_silu_joined": lambda x: gated_silu_joined(3.0 * x * x - x, plain=True),
    "rotate_own-half": lambda x: _turned(x, "half"),
    "rotate_own-interleaved": lambda x: _turned(x, "interleaved", BIAS),
}


@pytest.mark.parametrize("name", CASES)
def test_rule_agrees_with_nested_forward_mode(name, agrees_with_nesting):
    agrees_with_nesting(CASES[name])


def test_every_rule_is_exercised(rules_without_a_case):
    assert rules_without_a_case("blocks", CASES.values()) == set()
