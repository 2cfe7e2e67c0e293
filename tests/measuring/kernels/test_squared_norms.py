"""The squared norms of both states and their difference against the plain code, and against float64."""

from __future__ import annotations

import pytest
import torch

from loopscope.measuring.update import squared_norms


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(2, 3, 16), (1, 5, 33), (3, 1, 1500)])
@torch.no_grad()
def test_kernel_gives_the_plain_sums(dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    g = torch.Generator().manual_seed(5)
    h = torch.randn(shape, generator=g).to(dtype)
    h_plus = (h.float() + 1e-2 * torch.randn(shape, generator=g)).to(dtype)
    found, plain = (squared_norms(h, h_plus, impl) for impl in ("triton", "reference"))
    torch.testing.assert_close(found, plain, rtol=1e-14, atol=0.0)
    exact = torch.stack([(x * x).sum(-1) for x in (h.double(), h_plus.double(), h_plus.double() - h.double())])
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=0.0)
