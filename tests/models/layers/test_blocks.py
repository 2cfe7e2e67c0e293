"""RMS norms: value, rounding order, and agreement of the two implementations."""

from __future__ import annotations

import pytest
import torch

from loopscope.models.layers.blocks import RMSNorm


@pytest.fixture
def norm():
    generator = torch.Generator().manual_seed(3)
    layer = RMSNorm(48, 1e-6)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(48, generator=generator))
    return layer


@pytest.mark.parametrize("is_plain", [False, True])
def test_value_in_float64(norm, plain, is_plain):
    x = torch.randn(5, 48, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        found = norm.double()(x, is_plain).numpy()
    expected = plain.rms_norm(x.numpy(), norm.weight.detach().numpy(), 1e-6)
    assert abs(found - expected).max() < 1e-14


@pytest.mark.parametrize("is_plain", [False, True])
def test_bfloat16_rounds_before_the_weight(norm, is_plain):
    norm = norm.to(torch.bfloat16)
    x = torch.randn(64, 48, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    wide = x.float()
    rounded = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(torch.bfloat16)
    once = (rounded.float() * norm.weight.float()).to(torch.bfloat16)
    late = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6) * norm.weight.float()).to(torch.bfloat16)
    found = norm(x, is_plain)
    assert torch.equal(found, once)
    assert not torch.equal(once, late)


def test_a_row_of_zeros_stays_finite(norm):
    assert torch.equal(norm(torch.zeros(2, 48)), torch.zeros(2, 48))
