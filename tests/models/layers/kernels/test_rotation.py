"""The rotation in place against the plain one: the roundings are the same, and so are the bits."""

from __future__ import annotations

import pytest
import torch

from loopscope.models.layers.positions import Rotary, rotate, rotate_own


def normal(*shape, dtype, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_equals_the_plain_code_bit_by_bit(interpreted, launches, layout, rounded, with_bias, dtype):
    rotary = Rotary(10, 100.0, layout, rounded)
    tables = rotary.tables(torch.tensor([[0, 1, 2, 3, 40], [7, 7, 900, 0, 1]]), dtype)
    # Queries and keys beside values that must stay as they are, and more heads than one program turns.
    qkv = normal(2, 5, 3 * 12, 10, dtype=dtype)
    before = qkv.clone()
    bias = normal(2 * 12, 10, dtype=dtype, seed=3) if with_bias else None
    found = rotate_own(qkv[:, :, :24], tables, bias)
    assert launches == ["_rotate"]
    turned = rotate(before[:, :, :24] if bias is None else before[:, :, :24] + bias, tables)
    assert torch.equal(found, turned)
    assert found.data_ptr() == qkv.data_ptr()
    assert torch.equal(qkv[:, :, 24:], before[:, :, 24:])


@pytest.mark.parametrize("heads", [1, 33, 70])
def test_one_table_for_all_rows_and_any_number_of_heads(interpreted, heads):
    tables = Rotary(8, 100.0, rounded=True).tables(torch.arange(3)[None], torch.bfloat16)
    x = normal(2, 3, heads, 8, dtype=torch.bfloat16)
    expected = rotate(x, tables)
    assert torch.equal(rotate_own(x, tables), expected)


def test_a_wider_bias_takes_the_plain_code(interpreted, launches):
    """As under autocast, where projections are low and parameters are not: the sum is wide, and stays so."""
    tables = Rotary(8, 100.0).tables(torch.arange(3)[None], torch.float32)
    x, bias = normal(2, 3, 4, 8, dtype=torch.bfloat16), normal(4, 8, dtype=torch.float32, seed=1)
    assert torch.equal(rotate_own(x, tables, bias), rotate(x + bias, tables))
    assert launches == []


def test_entries_that_are_no_neighbours_take_the_plain_code(interpreted, launches):
    tables = Rotary(8, 100.0).tables(torch.arange(3)[None], torch.bfloat16)
    x = normal(2, 3, 8, 4, dtype=torch.bfloat16).transpose(2, 3)
    assert torch.equal(rotate_own(x, tables), rotate(x, tables))
    assert launches == []
