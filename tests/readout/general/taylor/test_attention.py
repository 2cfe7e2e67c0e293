"""The rule for attention, against nested forward mode in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from loopscope.readout.general.taylor import Series, attention

G = torch.Generator().manual_seed(7)
W = torch.randn(4, 4, generator=G, dtype=torch.float64)
K = torch.randn(2, 3, 4, generator=G, dtype=torch.float64)
CAUSAL = torch.ones(3, 3, dtype=torch.bool).tril()
FULLY_MASKED = CAUSAL.clone()
FULLY_MASKED[1] = False
BY_ROW = torch.stack([CAUSAL, CAUSAL.flip(1).T])[:, None]
BY_HEAD = torch.stack([CAUSAL, CAUSAL.flip(1).T, CAUSAL, FULLY_MASKED | CAUSAL.T]).reshape(2, 2, 3, 3)


def heads(x):
    """[2, 3, 4] as two heads of width two: [2, heads, 3, 2]."""
    return x.unflatten(-1, (2, 2)).transpose(1, 2)


# Each takes x of shape [2, 3, 4]. A test below asks that no rule of the file is left out.
CASES = {
    "attention-causal": lambda x: functional.scaled_dot_product_attention(
        heads(x), heads(x @ W), heads(x), is_causal=True
    ),
    "attention-mask": lambda x: functional.scaled_dot_product_attention(
        heads(x), heads(x), heads(x), attn_mask=CAUSAL, scale=0.7
    ),
    "attention-bias": lambda x: functional.scaled_dot_product_attention(
        heads(x), heads(x), heads(K), attn_mask=CAUSAL.double()
    ),
    "attention-constant-keys": lambda x: functional.scaled_dot_product_attention(heads(x * x), heads(K), heads(K)),
    "attention-grouped": lambda x: functional.scaled_dot_product_attention(
        heads(x), heads(x @ W)[:, :1], heads(x)[:, :1], is_causal=True, enable_gqa=True
    ),
    "attention-mask-by-row": lambda x: functional.scaled_dot_product_attention(
        heads(x), heads(x), heads(x), attn_mask=BY_ROW
    ),
    "attention-mask-by-head": lambda x: functional.scaled_dot_product_attention(
        heads(x), heads(x), heads(x), attn_mask=BY_HEAD
    ),
    "attention-at-a-few-positions": lambda x: functional.scaled_dot_product_attention(
        heads(x)[:, :, 1:], heads(x), heads(x), attn_mask=BY_ROW[:, :, 1:]
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rule_agrees_with_nested_forward_mode(name, agrees_with_nesting):
    agrees_with_nesting(CASES[name])


def test_every_rule_is_exercised(rules_without_a_case):
    assert rules_without_a_case("attention", CASES.values()) == set()


@pytest.mark.parametrize("name", CASES)
def test_reverse_mode_records_it_as_well(name, line):
    state = line[0].clone().requires_grad_(True)
    found = CASES[name](Series.line(state, line[1], 1)).coefficients
    (gradient,) = torch.autograd.grad(found[0].sum(), state)
    (expected,) = torch.autograd.grad(CASES[name](state).sum(), state)
    torch.testing.assert_close(gradient, expected, rtol=1e-11, atol=1e-13)


def test_a_row_masked_everywhere_attends_to_nothing(line):
    x = Series.line(*line, 2)
    out = functional.scaled_dot_product_attention(heads(x), heads(x), heads(x), attn_mask=FULLY_MASKED)
    assert torch.isfinite(out.coefficients).all()
    assert float(out.coefficients[:, :, :, 1].abs().max()) == 0.0


@pytest.mark.parametrize("name", ["attention-causal", "attention-mask-by-row", "attention-mask-by-head"])
@pytest.mark.parametrize("elements", [36, 108])
def test_attention_in_pieces_is_the_same(monkeypatch, line, name, elements):
    x = Series.line(*line, 3)
    whole = CASES[name](x).coefficients
    monkeypatch.setattr(attention, "_ATTENTION_ELEMENTS", elements)
    torch.testing.assert_close(CASES[name](x).coefficients, whole, rtol=1e-13, atol=1e-15)
