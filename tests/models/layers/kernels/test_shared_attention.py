"""Attention of sequences that share how they begin: the kernel against the plain code in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from loopscope.kernels import layers
from loopscope.models.batch import Group, common_prefix, pack
from loopscope.models.layers.attention import attend, takes_shared
from loopscope.models.layers.positions import attention_context


def drawn_groups(longest, count=4):
    """Questions of three options that begin alike; one of them shares nothing, one has a single sequence."""
    chance = np.random.default_rng(longest)
    found = []
    for row in range(count):
        context = chance.integers(0, 60, int(chance.integers(1, longest))).tolist()
        options = [context + chance.integers(0, 60, int(chance.integers(1, longest))).tolist() for _ in range(3)]
        found.append(Group(options, 0 if row == 1 else common_prefix(options), row))
    return [*found, Group([[7] * longest], 0, count)]


def drawn(packing, heads, shared_heads, width):
    shape = (1, packing.batch.input_ids.shape[1], heads + 2 * shared_heads, width)
    qkv = torch.randn(shape, generator=torch.Generator().manual_seed(width)).half()
    return qkv.split([heads, shared_heads, shared_heads], dim=2)


@pytest.fixture
def counted(monkeypatch):
    """How often the kernel ran."""
    seen, launch = [], layers.launch
    monkeypatch.setattr(layers, "launch", lambda *given, **rest: (seen.append(1), launch(*given, **rest)))
    return seen


@pytest.mark.parametrize("longest", [4, 80])
@pytest.mark.parametrize(("heads", "shared_heads", "width"), [(1, 1, 32), (2, 1, 16), (1, 1, 20)])
def test_is_the_plain_one_in_float64(interpreted, counted, longest, heads, shared_heads, width):
    packing = pack(drawn_groups(longest), unpadded=True)
    q, k, v = drawn(packing, heads, shared_heads, width)
    around = attention_context(packing.batch, None, torch.float16)
    found, exact = attend(q, k, v, around, 0), attend(q.double(), k.double(), v.double(), around, 0)
    assert len(counted) == 1
    assert (found.double() - exact).norm() < 5e-4 * exact.norm()


def test_a_group_does_not_depend_on_what_stands_beside_it(interpreted):
    groups = drawn_groups(40)
    packing = pack(groups, unpadded=True)
    q, k, v = drawn(packing, 2, 1, 16)
    every = attend(q, k, v, attention_context(packing.batch, None, torch.float16), 0)
    alone = pack(groups[2:3], unpadded=True)
    begin = sum(group.tokens for group in groups[:2])
    own = slice(begin, begin + groups[2].tokens)
    around = attention_context(alone.batch, None, torch.float16)
    assert torch.equal(attend(q[:, own], k[:, own], v[:, own], around, 0), every[:, own])


def test_others_are_left_to_other_kernels(interpreted, counted):
    packing = pack([Group([[1, 2, 3]]), Group([[4, 5]])], unpadded=True)
    q, k, v = drawn(packing, 1, 1, 16)
    attend(q, k, v, attention_context(packing.batch, None, torch.float16), 0)
    assert counted == [], "nothing is shared"
    parts = pack(drawn_groups(4), unpadded=True).batch.parts
    assert takes_shared(torch.zeros(1, 1, 256).half(), parts)
    assert not takes_shared(torch.zeros(1, 1, 512).half(), parts), "too wide a head"
