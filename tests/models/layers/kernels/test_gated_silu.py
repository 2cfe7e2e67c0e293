"""The fused gated activation against the plain one."""

from __future__ import annotations

import pytest
import torch

from loopscope.models.layers.blocks import gated_silu_joined


@pytest.mark.parametrize("shape", [(1, 2), (3, 26), (2, 3, 600), (2, 2100)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_equals_the_plain_code(interpreted, launches, ulps, shape, dtype):
    both = (4 * torch.randn(shape, generator=torch.Generator().manual_seed(2))).to(dtype)
    found = gated_silu_joined(both, plain=False)
    assert launches == ["_gated_silu"]
    expected = gated_silu_joined(both, plain=False, impl="reference")
    assert ulps(found, expected) <= 2
    assert (found == expected).float().mean() > 0.99


def test_part_of_a_wider_tensor(interpreted):
    both = torch.randn(2, 3, 40, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)[..., 4:36]
    found, expected = (gated_silu_joined(both, plain=False, impl=impl) for impl in ("triton", "reference"))
    torch.testing.assert_close(found, expected, rtol=2**-7, atol=0.0)
