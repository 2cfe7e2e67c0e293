"""Split products on an accelerator: both ways, ragged shapes, against float64 and against plain float32.

`make test-gpu`, or `python tests/kernels/split_product/test_cuda.py`, which needs no more than torch and pytest.
"""

from __future__ import annotations

import sys

import pytest
import torch

from loopscope.kernels.choice import implementation
from loopscope.kernels.split_product import accumulated, halved, mixed_linear, split, splits_apply
from loopscope.kernels.split_product_kernels import fused

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
WAYS = pytest.mark.parametrize("product", [accumulated, fused])
ROUNDING = {accumulated: 2.0**-21, fused: 2.0**-23}


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


@WAYS
@pytest.mark.parametrize("spread", [0.0, 3.0], ids=["even", "spread"])
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"),
    [(1, 16, 8), (5, 64, 33), (130, 5280, 257), (64, 17920, 130), (1000, 896, 1000), (37, 1000, 24)],
)
def test_no_worse_than_a_float32_product(product, rows, inputs, outputs, spread):
    x, weight = drawn(rows, inputs, outputs, spread)
    exact, scale = x.double() @ weight.double().T, x.double().abs() @ weight.double().abs().T
    errors = [
        float(((found.double() - exact) / scale).square().mean().sqrt())
        for found in (product(split(x), halved(weight)), x @ weight.float().T)
    ]
    assert errors[0] <= max(1.2 * errors[1], ROUNDING[product]), errors


@pytest.mark.parametrize("shape", [(1, 1), (9, 999), (3, 1025)])
def test_terms_equal_the_plain_ones(shape):
    g = torch.Generator("cuda").manual_seed(1)
    x = torch.randn(shape, generator=g, device="cuda")
    x *= torch.exp(20 * torch.randn(shape, generator=g, device="cuda"))
    for kernel, plain in zip(split(x, "triton"), split(x, "reference"), strict=True):
        assert torch.equal(kernel, plain)


@WAYS
def test_repeats_bit_for_bit(product):
    x, weight = drawn(300, 5280, 500, 1.0)
    terms, matrix = split(x), halved(weight)
    assert torch.equal(product(terms, matrix), product(terms, matrix))


def test_it_is_what_runs():
    x, weight = drawn(40, 128, 64, 0.0)
    assert splits_apply(x.device)
    assert torch.equal(mixed_linear(x, weight), fused(split(x), halved(weight)))
    with implementation("reference"):
        assert torch.equal(mixed_linear(x, weight), torch.nn.functional.linear(x, weight.float()))


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "--noconftest", "-p", "no:cacheprovider", *sys.argv[1:]]))
