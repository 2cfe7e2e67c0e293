"""Attention against loops over positions and heads; padding on either side; the two implementations."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from loopscope.models.batch import Batch
from loopscope.models.layers.attention import KeyValueCache, attend, cached_surroundings, surroundings
from loopscope.models.layers.rope import Rotary

ROTARY = Rotary(8, 100.0)


def queries(heads, shared, rows=1, width=9, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(rows, width, count, 8, generator=generator, dtype=torch.float64).to(dtype)
        for count in (heads, shared, shared)
    ]


def around(batch, dtype=torch.float64, plain=False):
    return dataclasses.replace(surroundings(batch, ROTARY, dtype), plain=plain)


@pytest.mark.parametrize(("heads", "shared"), [(1, 1), (4, 4), (6, 2), (5, 1)])
@pytest.mark.parametrize("is_plain", [False, True])
def test_one_sequence(plain, heads, shared, is_plain):
    q, k, v = queries(heads, shared)
    batch = Batch.of(torch.zeros(1, 9, dtype=torch.int64))
    found = attend(q, k, v, around(batch, plain=is_plain), 0)
    assert np.abs(found[0].numpy() - plain.attention(q[0].numpy(), k[0].numpy(), v[0].numpy())).max() < 1e-13


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("shared", [4, 2])
@pytest.mark.parametrize("is_plain", [False, True])
def test_padding_is_never_seen(plain, padding, shared, is_plain):
    lengths = [9, 4, 1]
    batch = Batch.from_rows([[1] * length for length in lengths], padding=padding)
    q, k, v = queries(4, shared, rows=3)
    for tensor in (q, k, v):
        tensor[~batch.attention_mask] = 1e6
    found = attend(q, k, v, around(batch, plain=is_plain), 0)
    assert found.isfinite().all()
    for row, valid in enumerate(batch.attention_mask):
        expected = plain.attention(*(tensor[row, valid].numpy() for tensor in (q, k, v)))
        assert np.abs(found[row, valid].numpy() - expected).max() < 1e-12


def test_bfloat16_takes_the_softmax_in_float32():
    q, k, v = queries(2, 2, dtype=torch.bfloat16)
    batch = Batch.of(torch.zeros(1, 9, dtype=torch.int64))
    found = attend(q, k, v, around(batch, torch.bfloat16, plain=True), 0)
    scores = (q.transpose(1, 2) @ k.transpose(1, 2).transpose(-1, -2)) * 8**-0.5
    hidden = torch.ones(9, 9, dtype=torch.bool).triu(1)
    weights = scores.float().masked_fill(hidden, -torch.inf).softmax(-1).to(torch.bfloat16)
    assert torch.equal(found, (weights @ v.transpose(1, 2)).transpose(1, 2).reshape(1, 9, 16))


def test_rows_of_different_lengths_continue_in_the_cache_at_their_own_positions(plain):
    lengths, extra = [6, 2, 4], 3
    q, k, v = queries(4, 2, rows=3, width=9)
    cache = KeyValueCache(9)
    cache.used = 6
    positions = torch.arange(6).expand(3, 6)
    first = cached_surroundings(positions, cache, ROTARY, torch.float64)
    found = [attend(q[:, :6], k[:, :6], v[:, :6], first, 7)]
    outputs = [[found[0][row, s] for s in range(length)] for row, length in enumerate(lengths)]
    for step in range(extra):
        at = torch.tensor([[length + step] for length in lengths])
        pick = at[..., None, None]
        cache.used = int(at.max()) + 1
        later = cached_surroundings(at, cache, ROTARY, torch.float64)
        new = attend(*(x.gather(1, pick.expand(3, 1, *x.shape[2:])) for x in (q, k, v)), later, 7)
        for row in range(3):
            outputs[row].append(new[row, 0])
    for row, length in enumerate(lengths):
        valid = slice(0, length + extra)
        expected = plain.attention(*(tensor[row, valid].numpy() for tensor in (q, k, v)))
        assert np.abs(torch.stack(outputs[row]).numpy() - expected).max() < 1e-13
    assert cache.slots() == [7]


def test_positions_are_counted_over_valid_tokens_unless_given():
    batch = Batch.from_rows([[1, 2, 3], [4]], padding="left")
    counted = around(batch).rotary.cos
    assert torch.equal(counted[1, 2], counted[0, 0])
    given = Batch(batch.input_ids, batch.attention_mask, torch.arange(3).expand(2, 3))
    assert torch.equal(around(given).rotary.cos[1, 2], counted[0, 2])


def test_every_query_sees_something():
    batch = Batch.from_rows([[1, 2, 3], [4]], padding="left")
    visible = around(batch).visible
    assert visible.any(dim=-1).all()
    assert visible[1, 0].int().tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
