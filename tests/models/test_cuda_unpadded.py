"""Sequences side by side without padding on an accelerator: the kernel against float64, states against padded rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from loopscope.models.batch import Batch, Group, common_prefix, pack
from loopscope.models.layers import attention
from loopscope.models.layers.attention import attend, runs_unpadded, takes_varlen, varlen_kernel
from loopscope.models.layers.positions import attention_context

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]
FAMILIES = ["ouro", "huginn", "retrofit_llama", "retrofit_olmo", "nanbeige", "hrm_text:attention=causal", "loopus"]
SHARING = pytest.mark.parametrize("shares", [False, True], ids=["apart", "shared"])
LOW = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])


def drawn_groups(shares, longest=200, seed=0):
    """Nine questions of four options that begin alike."""
    chance = np.random.default_rng(seed)
    found = []
    for row in range(9):
        context = chance.integers(0, 60, int(chance.integers(3, longest))).tolist()
        options = [context + chance.integers(0, 60, int(chance.integers(2, longest))).tolist() for _ in range(4)]
        found.append(Group(options, common_prefix(options) if shares else 0, row))
    return found


@LOW
@pytest.mark.parametrize("way", ["apart", "shared", "gathered"])
@pytest.mark.parametrize(
    ("heads", "shared_heads", "width"), [(16, 16, 128), (55, 55, 96), (4, 2, 64), (3, 3, 20), (2, 1, 256)]
)
@torch.no_grad()
def test_attention_is_the_plain_one_in_float64(dtype, heads, shared_heads, width, way, monkeypatch):
    shares = way != "apart"
    if way == "gathered":
        monkeypatch.setattr(attention, "takes_shared", lambda *_: False)
    packing = pack(drawn_groups(shares), unpadded=True).to("cuda")
    chance = torch.Generator("cuda").manual_seed(width)
    shape = (1, packing.batch.input_ids.shape[1], heads + 2 * shared_heads, width)
    qkv = torch.randn(shape, device="cuda", generator=chance).to(dtype)
    q, k, v = qkv.split([heads, shared_heads, shared_heads], dim=2)
    around = attention_context(packing.batch, None, dtype)
    assert takes_varlen(q)
    assert attention.takes_shared(q, packing.batch.parts) == (way == "shared")
    found, exact = attend(q, k, v, around, 0), attend(q.double(), k.double(), v.double(), around, 0)
    assert (found.double() - exact).norm() < 4e-3 * exact.norm()


@SHARING
@torch.no_grad()
def test_the_operation_is_that_of_torchs_own_function(shares):
    public = pytest.importorskip("torch.nn.attention.varlen").varlen_attn
    parts = pack(drawn_groups(shares), unpadded=True).to("cuda").batch.parts
    chance = torch.Generator("cuda").manual_seed(2)
    sizes = (int(parts.queries[-1]), 4), (int(parts.keys[-1]), 2), (int(parts.keys[-1]), 2)
    q, k, v = (torch.randn(*size, 64, device="cuda", generator=chance).bfloat16() for size in sizes)
    sequences = (parts.queries, parts.keys, parts.longest, parts.longest_keys)
    # A key head for each query head: not every torch release has `enable_gqa` here.
    every_k, every_v = (x.repeat_interleave(2, 1) for x in (k, v))
    expected = public(q, every_k, every_v, *sequences, scale=0.125, window_size=(-1, 0))
    assert torch.equal(varlen_kernel()(q, k, v, *sequences, scale=0.125), expected)


@LOW
@torch.no_grad()
def test_a_group_does_not_depend_on_what_stands_beside_it(dtype):
    groups = drawn_groups(shares=True)
    packing = pack(groups, unpadded=True).to("cuda")
    chance = torch.Generator("cuda").manual_seed(1)
    qkv = torch.randn(1, packing.batch.input_ids.shape[1], 12, 64, device="cuda", generator=chance).to(dtype)
    every = attend(*qkv.split(4, dim=2), attention_context(packing.batch, None, dtype), 0)
    start = 0
    for group in groups:
        own = slice(start, start + group.tokens)
        around = attention_context(pack([group], unpadded=True).to("cuda").batch, None, dtype)
        assert torch.equal(attend(*qkv[:, own].split(4, dim=2), around, 0), every[:, own])
        start = own.stop


@SHARING
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_states_are_as_accurate_as_those_of_padded_rows(golden_model, family, shares):
    exact, model = golden_model(family, dtype=torch.float64), golden_model(family, dtype=torch.bfloat16).to("cuda")
    assert runs_unpadded(model)
    groups = drawn_groups(shares, longest=12)
    packing = pack(groups, unpadded=True).to("cuda")
    sources = [group.source_row for group in groups for _ in group.sequences]
    padded = Batch.from_rows([sequence for group in groups for sequence in group.sequences], source_rows=sources)
    valid = padded.attention_mask
    expected = exact.states(padded, [3])[3][valid]
    found = packing.separate(model.states(packing.batch, [3])[3]).cpu().double()[valid]
    plain = model.states(padded, [3])[3].cpu().double()[valid]
    assert (found - expected).norm() < 1.3 * (plain - expected).norm()


@SHARING
@torch.no_grad()
def test_nothing_waits_for_the_device(golden_model, shares):
    model = golden_model("ouro", dtype=torch.bfloat16).to("cuda")
    packing = pack(drawn_groups(shares), unpadded=True).to("cuda")
    model.states(packing.batch, [2])
    torch.cuda.set_sync_debug_mode("error")
    try:
        context = model.embed(packing.batch)
        packing.separate(model.step(context.state, context))
    finally:
        torch.cuda.set_sync_debug_mode("default")
