"""Rules for norms, softmax and attention, each against nested forward mode in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from loopscope.readout.taylor import Series, normalise

G = torch.Generator().manual_seed(7)


def _randn(*shape):
    return torch.randn(*shape, generator=G, dtype=torch.float64)


def _ones(*shape):
    return torch.ones(*shape, dtype=torch.float64)


W = _randn(4, 6)
K = _randn(2, 3, 4)
MASK = torch.tensor([[True, False, True, True], [False, True, True, False], [True, True, False, True]])
CAUSAL = torch.ones(3, 3, dtype=torch.bool).tril()


FULLY_MASKED = CAUSAL.clone()
FULLY_MASKED[1] = False


def heads(x):
    """[2, 3, 4] as two heads of width two: [2, heads, 3, 2]."""
    return x.unflatten(-1, (2, 2)).transpose(1, 2)


# Each takes x of shape [2, 3, 4]. A test below asks that no rule of the file is left out.
CASES = {
    "rms_norm": lambda x: functional.rms_norm(x * x, (4,), K[0, 0], 1e-5) + functional.rms_norm(x, (3, 4)),
    "layer_norm": lambda x: functional.layer_norm(x * x, (4,), K[0, 0], K[0, 1], 1e-5),
    "softmax": lambda x: torch.softmax(4.0 * x * x, -1) + functional.softmax(x, dim=1) + x.softmax(0),
    "softmax-masked": lambda x: torch.softmax((x * x).masked_fill(MASK, -math.inf), -1),
    "log_softmax": lambda x: torch.log_softmax(4.0 * x * x, -1) + functional.log_softmax(x, dim=1),
    "logsumexp": lambda x: torch.logsumexp(3.0 * x * x, -1) + torch.logsumexp(x, 2, keepdim=True)[..., 0],
    "special_logsumexp": lambda x: torch.special.logsumexp(x * x, -1),
    "attention-causal": lambda x: functional.scaled_dot_product_attention(
        heads(x), heads(x @ W[:, :4]), heads(x), is_causal=True
    ),
    "attention-mask": lambda x: functional.scaled_dot_product_attention(
        heads(x), heads(x), heads(x), attn_mask=CAUSAL, scale=0.7
    ),
    "attention-bias": lambda x: functional.scaled_dot_product_attention(
        heads(x), heads(x), heads(K), attn_mask=_ones(3, 3).tril()
    ),
    "attention-constant-keys": lambda x: functional.scaled_dot_product_attention(heads(x * x), heads(K), heads(K)),
    "attention-grouped": lambda x: functional.scaled_dot_product_attention(
        heads(x), heads(x @ W[:, :4])[:, :1], heads(x)[:, :1], is_causal=True, enable_gqa=True
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rule_agrees_with_nested_forward_mode(name, agrees_with_nesting):
    agrees_with_nesting(CASES[name])


def test_every_rule_is_exercised(rules_without_a_case):
    assert rules_without_a_case("normalise", CASES.values()) == set()


def test_a_row_masked_everywhere_attends_to_nothing(line):
    x = Series.line(*line, 2)
    out = functional.scaled_dot_product_attention(heads(x), heads(x), heads(x), attn_mask=FULLY_MASKED)
    assert torch.isfinite(out.coefficients).all()
    assert float(out.coefficients[:, :, :, 1].abs().max()) == 0.0


def test_attention_in_pieces_is_the_same(monkeypatch, line):
    x = Series.line(*line, 3)
    whole = CASES["attention-causal"](x).coefficients
    monkeypatch.setattr(normalise, "_ATTENTION_ELEMENTS", 40)
    assert torch.equal(CASES["attention-causal"](x).coefficients, whole)


def test_softmax_loses_no_digits_to_a_common_drift():
    base = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)
    spread = torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)
    still = torch.softmax(Series.line(base, spread, 3), -1).coefficients
    adrift = torch.softmax(Series.line(base, spread + 2.0**30, 3), -1).coefficients
    assert float((still - adrift).abs().max()) < 1e-12
