"""Split products on an accelerator: both ways, ragged shapes, against float64 and against plain float32.

`make test-gpu`, or `python tests/kernels/split_product/test_cuda.py`, which needs no more than torch and pytest.
"""

from __future__ import annotations

import sys

import pytest
import torch

from loopscope.kernels.choice import implementation
from loopscope.kernels.product import mixed_linear, split, splits_apply

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(autouse=True)
def inference():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.no_grad():
        yield
    torch.backends.cuda.matmul.allow_tf32 = before


def drawn(rows, inputs, outputs, spread):
    g = torch.Generator("cuda").manual_seed(rows + inputs + outputs)
    x = torch.randn(rows, inputs, generator=g, device="cuda")
    x *= torch.exp(spread * torch.randn(rows, inputs, generator=g, device="cuda"))
    return x, torch.randn(outputs, inputs, generator=g, device="cuda").to(torch.bfloat16)


@pytest.mark.parametrize("spread", [0.0, 3.0], ids=["even", "spread"])
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"),
    [(1, 16, 8), (5, 64, 33), (130, 5280, 257), (64, 17920, 130), (1000, 896, 1000), (37, 1000, 24)],
)
def test_no_worse_than_a_float32_product(rows, inputs, outputs, spread):
    x, weight = drawn(rows, inputs, outputs, spread)
    assert splits_apply(x.device)
    exact, scale = x.double() @ weight.double().T, x.double().abs() @ weight.double().abs().T
    found, again = mixed_linear(x, weight), mixed_linear(x, weight)
    assert torch.equal(found, again)
    with implementation("reference"):
        plain = mixed_linear(x, weight)
    assert torch.equal(plain, x @ weight.float().T)
    ours, theirs = (float(((y.double() - exact) / scale).square().mean().sqrt()) for y in (found, plain))
    assert ours <= max(1.2 * theirs, 2.0**-23)


@pytest.mark.parametrize("shape", [(1, 1), (9, 999), (3, 1025)])
def test_terms_equal_the_plain_ones(shape):
    g = torch.Generator("cuda").manual_seed(1)
    x = torch.randn(shape, generator=g, device="cuda")
    x *= torch.exp(20 * torch.randn(shape, generator=g, device="cuda"))
    for kernel, plain in zip(split(x, "triton"), split(x, "reference"), strict=True):
        assert torch.equal(kernel, plain)


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "--noconftest", "-p", "no:cacheprovider", *sys.argv[1:]]))
