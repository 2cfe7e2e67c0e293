"""The fused norm against the plain one, at widths that fill no block."""

from __future__ import annotations

import pytest
import torch

from loopscope.models.layers.blocks import RMSNorm


def normal(*shape, dtype, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.fixture(params=[torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def dtype(request):
    return request.param


def norm_of(width, dtype, eps=1e-6):
    norm = RMSNorm(width, eps).to(dtype)
    with torch.no_grad():
        norm.weight.copy_(1 + 0.3 * normal(width, dtype=torch.float32, seed=9))
    return norm


@pytest.mark.parametrize("shape", [(1, 1), (3, 16), (2, 3, 37), (2, 5, 200)])
def test_equals_the_plain_code(interpreted, launches, ulps, dtype, shape):
    norm, x = norm_of(shape[-1], dtype), normal(*shape, dtype=dtype)
    found, expected = norm(x), norm(x, impl="reference")
    assert ulps(found, expected) <= 2
    assert (found == expected).float().mean() > 0.99
    assert launches == ["_add_branch"]


def test_equals_the_plain_code_on_part_of_a_wider_tensor(interpreted, ulps, dtype):
    norm, x = norm_of(24, dtype), normal(2, 3, 60, dtype=dtype)[..., 30:54]
    assert ulps(norm(x), norm(x, impl="reference")) <= 2


def test_rounds_before_the_weight(interpreted, dtype):
    norm, x = norm_of(64, dtype), normal(40, 64, dtype=dtype)
    scaled = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    early = (scaled.to(dtype).float() * norm.weight.float()).to(dtype)
    late = (scaled * norm.weight.float()).to(dtype)
    found = norm(x)
    assert (found != early).float().mean() < 0.005
    assert (found != late).float().mean() > 0.05
