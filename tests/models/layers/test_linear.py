"""Matrix products: value, independence of the number of rows, and joined layers."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from loopscope.models.layers.attention import Attention, AttentionSizes
from loopscope.models.layers.blocks import linear


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 15, 16, 40])
@pytest.mark.parametrize("width", [64, 160])
def test_a_row_does_not_depend_on_how_many_there_are(rows, width):
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(64, width, generator=generator), torch.randn(96, width, generator=generator)
    assert torch.equal(linear(x[:rows], weight), linear(x, weight)[:rows])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17, 100, 255, 256, 300, 777])
def test_blocks_of_rows_give_the_rows_of_the_whole_product(dtype, rows):
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*shape, generator=generator).to(dtype) for shape in ((1000, 160), (96, 160), (96,)))
    whole = linear(x, weight, bias)
    found = linear(x[:rows].reshape(rows, 1, 160), weight, bias)
    assert torch.equal(found, whole[:rows].reshape(rows, 1, 96))
    exact = torch.einsum("ri,oi->ro", x[:rows].double(), weight.double()) + bias.double()
    # One rounding to 8 or 11 bits, of a sum whose own errors are far below.
    torch.testing.assert_close(found[:, 0].double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-5)


def test_value_shape_and_gradient():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(5, generator=generator, dtype=torch.float64, requires_grad=True)
    expected = torch.einsum("abi,oi->abo", x, weight) + bias
    assert torch.allclose(linear(x, weight, bias), expected, rtol=0, atol=1e-14)
    assert torch.autograd.gradcheck(linear, (x, weight, bias))
    assert torch.autograd.gradgradcheck(linear, (x, weight, bias))


@pytest.mark.parametrize("bias", [False, True])
def test_joined_layers_share_memory_and_keep_their_values(bias):
    attention = Attention(AttentionSizes(6, 2, 1, 4), bias=bias)
    parts = attention.linears()
    before = [part.weight.detach().clone() for part in parts]
    attention.fuse()
    weight, joined_bias = attention.joined
    assert torch.equal(weight, torch.cat(before))
    assert [torch.equal(part.weight, old) for part, old in zip(parts, before, strict=True)] == [True] * 3
    assert parts[1].weight.data_ptr() == weight[8:].data_ptr()
    assert (joined_bias is not None) == bias
    with torch.no_grad():
        parts[1].weight.fill_(7.0)
    assert (weight[8:12] == 7.0).all()
    assert not parts[0].weight.requires_grad


def test_loading_starts_no_compiler():
    code = (
        "import sys; from loopscope.models.load import load_model; load_model('toy-ouro'); load_model('toy-huginn')\n"
        "sys.exit(', '.join(sorted({'torch._dynamo', 'torch._inductor', 'triton'} & set(sys.modules))) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
