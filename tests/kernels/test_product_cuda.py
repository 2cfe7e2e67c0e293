"""Products on an accelerator: both kinds, ragged shapes, against float64 and against plain float32; `make test-gpu`."""

from __future__ import annotations

import pytest
import torch

from loopscope.kernels.choice import implementation
from loopscope.kernels.product import NARROW, WIDE, mixed_linear, multiply, split, splits_apply

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(autouse=True)
def inference():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.no_grad():
        yield
    torch.backends.cuda.matmul.allow_tf32 = before


def drawn(rows, inputs, outputs, spread=0.0):
    g = torch.Generator("cuda").manual_seed(rows + inputs + outputs)
    x = torch.randn(rows, inputs, generator=g, device="cuda")
    x *= torch.exp(spread * torch.randn(rows, inputs, generator=g, device="cuda"))
    return x, torch.randn(outputs, inputs, generator=g, device="cuda").to(torch.bfloat16)


@pytest.mark.parametrize("spread", [0.0, 3.0], ids=["even", "spread"])
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"),
    [(1, 16, 8), (5, 64, 33), (130, 5280, 257), (64, 17920, 130), (1000, 896, 1000), (37, 1000, 24)],
)
def test_no_worse_than_a_float32_product(error, rows, inputs, outputs, spread):
    x, weight = drawn(rows, inputs, outputs, spread)
    assert splits_apply(x.device)
    found, again = mixed_linear(x, weight), mixed_linear(x, weight)
    assert torch.equal(found, again)
    with implementation("reference"):
        plain = mixed_linear(x, weight)
    assert torch.equal(plain, x @ weight.float().T)
    assert error(found, x, weight) <= max(1.2 * error(plain, x, weight), 2.0**-23)


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 64, 8), (130, 1000, 257), (1024, 2048, 4096), (9, 30, 7)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tile", [WIDE, NARROW], ids=["wide", "narrow"])
def test_sums_have_no_bias(rows, inputs, outputs, dtype, tile):
    x, weight = (each.to(dtype) for each in drawn(rows, inputs, outputs))
    found, exact = torch.empty(rows, outputs, device="cuda"), x.double() @ weight.double().T
    multiply(x.unsqueeze(0), weight, tile, found)
    # Sums of 512 inputs were measured to be right to 2.5e-7 of a standard deviation, those of 64 to 1e-7.
    off = found.double() - exact
    assert float(off.square().mean().sqrt()) <= 4.5e-7 * inputs**0.5
    assert abs(float((off * exact).sum() / exact.square().sum())) <= 5e-8 + 2e-6 / exact.numel() ** 0.5


@pytest.mark.parametrize("shape", [(1, 1), (9, 999), (3, 1025)])
def test_terms_equal_the_plain_ones(shape):
    g = torch.Generator("cuda").manual_seed(1)
    x = torch.randn(shape, generator=g, device="cuda")
    x *= torch.exp(20 * torch.randn(shape, generator=g, device="cuda"))
    for kernel, plain in zip(split(x, "triton"), split(x, "reference"), strict=True):
        assert torch.equal(kernel, plain)
