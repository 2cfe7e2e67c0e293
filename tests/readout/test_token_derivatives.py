"""Derivatives of a token's log probability from its logits' coefficients."""

from __future__ import annotations

import math

import pytest
import torch

from loopscope.readout import token_derivatives as module
from loopscope.readout.token_derivatives import token_derivatives


def _coefficients(order, tokens=7, vocabulary=23, dtype=torch.float64):
    g = torch.Generator().manual_seed(order)
    return torch.randn(order + 1, tokens, vocabulary, generator=g, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("order", [0, 1, 2, 3, 4])
def test_against_autograd_along_the_polynomial(order):
    c = _coefficients(order)
    targets = torch.arange(7)
    tau = torch.zeros((), dtype=torch.float64, requires_grad=True)
    z = sum(c[k] * tau**k for k in range(order + 1))
    found = token_derivatives(c, targets)
    for token in range(7):
        derivative = torch.log_softmax(z, -1)[token, targets[token]]
        for k in range(order + 1):
            torch.testing.assert_close(found[k, token], derivative.detach(), rtol=1e-11, atol=1e-12)
            if k < order:
                (derivative,) = torch.autograd.grad(derivative, tau, create_graph=True)


def test_tokens_do_not_depend_on_the_block_they_are_in(monkeypatch):
    c, targets = _coefficients(3, tokens=50), torch.arange(50) % 23
    whole = token_derivatives(c, targets)
    monkeypatch.setitem(module._ELEMENTS, "cpu", 23 * 8)
    assert torch.equal(token_derivatives(c, targets), whole)


def test_a_sure_token_keeps_its_small_probability_of_the_rest():
    c = torch.zeros(1, 1, 4, dtype=torch.float64)
    c[0, 0, 2] = 80.0
    assert float(token_derivatives(c, torch.tensor([2]))) == pytest.approx(-3.0 * math.exp(-80.0), rel=1e-12)
