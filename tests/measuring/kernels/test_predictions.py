"""Sums over the vocabulary of two depths: the kernel against the plain code, and against float64."""

from __future__ import annotations

import pytest
import torch

from loopscope.kernels.choice import implementation
from loopscope.measuring.predictions import Prediction


def changed(z0: torch.Tensor, z1: torch.Tensor, targets: torch.Tensor, lens: int) -> dict[str, torch.Tensor]:
    before = Prediction(z0, targets, lens)
    return Prediction(z1, targets, lens, before).said.columns(lens, before.said)


@pytest.mark.parametrize("vocabulary", [2, 300, 1030])
@pytest.mark.parametrize("scale", [1e-3, 1.0])
@torch.no_grad()
def test_kernel_gives_the_plain_columns(vocabulary: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    before = 5 * torch.randn(4, vocabulary, generator=generator)
    now = before + scale * torch.randn(4, vocabulary, generator=generator)
    targets = torch.randint(vocabulary, (4,), generator=generator)
    found = {}
    for name, dtype in (("triton", torch.float32), ("reference", torch.float32), ("exact", torch.float64)):
        with implementation("triton" if name == "triton" else "reference"):
            z0, z1 = before.to(dtype), now.to(dtype)
            found[name] = changed(z0, z1, targets, 2)
    assert set(found["triton"]) == set(found["exact"])
    for name, exact in found["exact"].items():
        for other in ("triton", "reference"):
            torch.testing.assert_close(found[other][name].double(), exact.double(), rtol=4e-6, atol=1e-6)
