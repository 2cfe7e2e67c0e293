"""The kernels of the split product against the plain code."""

from __future__ import annotations

import pytest
import torch

from loopscope.kernels.product import Tile, halved, mixed_linear, rounded_product, split


@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (3, 700), (2, 1513)])
def test_terms_equal_the_plain_ones(interpreted, shape):
    g = torch.Generator().manual_seed(1)
    x = torch.randn(shape, generator=g) * torch.exp(20 * torch.randn(shape, generator=g))
    for kernel, plain in zip(split(x, "triton"), split(x, "reference"), strict=True):
        assert torch.equal(kernel, plain)


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"), [(1, 16, 1), (16, 32, 16), (19, 200, 37), (5, 1000, 3), (33, 7, 17)]
)
@pytest.mark.parametrize("tile", [None, Tile(32, 16, 32, 1, 1, 3)], ids=["small", "wider"])
def test_product_is_as_close_as_a_float32_one(interpreted, factors, rows, inputs, outputs, tile):
    x, weight = factors(rows, inputs, outputs, spread=2.0)
    exact = x.double() @ weight.double().T
    scale = x.double().abs() @ weight.double().abs().T
    found = rounded_product(split(x), halved(weight), tile)
    ours, theirs = (float(((y - exact) / scale).square().mean().sqrt()) for y in (found, x @ weight.float().T))
    assert ours <= max(1.2 * theirs, 2.0**-23)


def test_the_choice_triton_takes_the_kernels(interpreted, factors):
    x, weight = factors(3, 40, 20)
    matrix = torch.cat([weight, weight])[10:30]
    found = mixed_linear(x.reshape(3, 1, 40), matrix, torch.ones(20, dtype=torch.bfloat16), impl="triton")
    torch.testing.assert_close(found, (x @ matrix.float().T + 1.0).reshape(3, 1, 20), rtol=1e-6, atol=1e-4)
