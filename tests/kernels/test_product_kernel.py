"""The kernels of products against float64, through Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from loopscope.kernels.product import NARROW, WIDE, mixed_linear, multiply, split


@pytest.mark.parametrize("shape", [(1, 1), (3, 700), (2, 1513)])
def test_terms_equal_the_plain_ones(interpreted, shape):
    g = torch.Generator().manual_seed(1)
    x = torch.randn(shape, generator=g) * torch.exp(20 * torch.randn(shape, generator=g))
    for kernel, plain in zip(split(x, "triton"), split(x, "reference"), strict=True):
        assert torch.equal(kernel, plain)


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 16, 1), (19, 200, 37), (5, 1000, 3), (150, 7, 270)])
@pytest.mark.parametrize("tile", [WIDE, NARROW._replace(part=128)], ids=["wide", "narrow"])
def test_product_is_as_close_as_a_float32_one(interpreted, factors, error, rows, inputs, outputs, tile):
    x, weight = factors(rows, inputs, outputs)
    x, bias = x.bfloat16(), torch.linspace(-1.0, 1.0, outputs)
    found = torch.full((rows, outputs), torch.nan)
    multiply(x.unsqueeze(0), weight, tile, found, bias_N=bias, least=-2.0)
    expected = (x.double() @ weight.double().T + bias).clamp(min=-2.0)
    torch.testing.assert_close(found.double(), expected, rtol=0.0, atol=1e-6 * inputs**0.5)


def test_the_choice_triton_takes_the_kernels(interpreted, factors, error):
    x, weight = factors(3, 40, 20, spread=2.0)
    matrix, bias = torch.cat([weight, weight])[10:30], torch.ones(20, dtype=torch.bfloat16)
    found = mixed_linear(x.reshape(3, 1, 40), matrix, bias, impl="triton")
    assert error(found.reshape(3, 20) - 1.0, x, matrix) <= 2.0**-22
