"""Attention of series with its weights from one pass, against the plain rule."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from loopscope.readout.general import layers
from loopscope.readout.general.core import Series


def _heads(order, rows, heads, queries, keys, width):
    g = torch.Generator().manual_seed(rows + heads + queries + keys)
    return [1.5 * torch.randn(order + 1, rows, heads, s, width, generator=g) for s in (queries, keys, keys)]


def _attention(**options):
    return lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, **options)


@pytest.mark.parametrize(
    ("order", "sizes"), [(1, (2, 3, 7, 7, 4)), (2, (1, 2, 33, 33, 8)), (3, (1, 1, 1, 1, 2)), (3, (1, 2, 33, 33, 8))]
)
def test_causal(interpreted, launches, as_close_as_plain, sizes, order):
    as_close_as_plain(_attention(is_causal=True), *_heads(order, *sizes))
    assert launches == ["_attention_weights"]


def test_every_key_is_seen(interpreted, launches, as_close_as_plain):
    as_close_as_plain(_attention(scale=0.3), *_heads(3, 2, 3, 5, 9, 4))
    assert launches == ["_attention_weights"]


@pytest.mark.parametrize("shape", [(2, 1, 5, 9), (2, 3, 5, 9), (9,)])
def test_masks(interpreted, launches, as_close_as_plain, shape):
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.6
    mask[..., 0] = True
    as_close_as_plain(_attention(attn_mask=mask), *_heads(3, 2, 3, 5, 9, 4))
    assert launches == ["_attention_weights"]


@pytest.mark.parametrize("elements", [2 * 4 * 5 * 9])
def test_in_pieces(interpreted, launches, as_close_as_plain, monkeypatch, elements):
    monkeypatch.setattr(layers, "_ATTENTION_ELEMENTS", elements)
    mask = torch.rand(2, 1, 5, 9, generator=torch.Generator().manual_seed(1)) < 0.6
    mask[..., 0] = True
    as_close_as_plain(_attention(attn_mask=mask), *_heads(3, 2, 3, 5, 9, 4))
    assert len(launches) > 1


def test_a_query_that_sees_nothing_gets_nothing(interpreted):
    mask = torch.ones(5, 9, dtype=torch.bool)
    mask[2] = False
    out = _attention(attn_mask=mask)(*(Series(c) for c in _heads(3, 2, 3, 5, 9, 4))).coefficients
    assert (out[..., 2, :] == 0).all()
    assert out.isfinite().all()
