"""How two softmaxes differ: the kernel's sums against the path between the ends, for small changes and large ones."""

from __future__ import annotations

import pytest
import torch

from loopscope.measuring.output_change import softmax_change


@pytest.mark.parametrize("vocabulary", [2, 300, 9000])
@pytest.mark.parametrize(("spread", "step"), [(0.9, 0.3), (7.0, 1e-5), (7.0, 1e-2), (27.0, 5.0)])
@torch.no_grad()
def test_kernel_agrees_with_the_path_between_the_ends(vocabulary: int, spread: float, step: float) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    z0 = spread * torch.randn(3, vocabulary, generator=generator)
    z1 = z0 + step * torch.randn(3, vocabulary, generator=generator)
    targets = torch.zeros(3, dtype=torch.int64)
    for found, exact in zip(*(softmax_change(z0, z1, targets, impl) for impl in ("triton", "reference")), strict=True):
        torch.testing.assert_close(found, exact, rtol=1e-9, atol=0.0)
