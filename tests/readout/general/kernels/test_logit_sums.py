"""Derivatives of tokens from one pass over their logits, against the plain code."""

from __future__ import annotations

import pytest
import torch

from loopscope.readout.general.token_derivatives import token_derivatives


def _coefficients(order, tokens, vocabulary, sharpness=1.0, dtype=torch.float32):
    c = torch.randn(order + 1, tokens, vocabulary, generator=torch.Generator().manual_seed(vocabulary))
    c[0] *= sharpness
    return c.to(dtype)


@pytest.mark.parametrize(("order", "vocabulary"), [(0, 17), (1, 600), (2, 1024), (3, 1), (3, 600)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_the_plain_code(interpreted, launches, order, vocabulary, dtype):
    c = _coefficients(order, 5, vocabulary, dtype=dtype)
    targets = torch.arange(5) % vocabulary
    found = token_derivatives(c, targets)
    assert launches == ["_logit_sums"]
    torch.testing.assert_close(found, token_derivatives(c, targets, "reference"), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("sharpness", [0.0, 100.0])
def test_flat_and_peaked_softmaxes(interpreted, sharpness):
    c = _coefficients(3, 6, 300, sharpness, torch.float64)
    targets = torch.cat([c[0, :3].argmax(1), torch.tensor([0, 7, 299])])
    expected = token_derivatives(c, targets, "reference")
    torch.testing.assert_close(token_derivatives(c, targets), expected, rtol=1e-10, atol=0.0)


def test_blocks_of_the_vocabulary_add_up(interpreted, monkeypatch):
    c, targets = _coefficients(3, 4, 1000), torch.tensor([0, 500, 999, 3])
    monkeypatch.setattr("loopscope.readout.general.kernels._VOCABULARY_BLOCK", 128)
    monkeypatch.setattr("loopscope.readout.general.kernels._BLOCK", 64)
    expected = token_derivatives(c, targets, "reference")
    torch.testing.assert_close(token_derivatives(c, targets), expected, rtol=1e-11, atol=1e-13)


def test_a_fourth_order_takes_the_plain_code(interpreted, launches):
    token_derivatives(_coefficients(4, 2, 9), torch.tensor([0, 1]))
    assert launches == []
