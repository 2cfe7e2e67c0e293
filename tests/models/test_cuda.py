"""The same numbers on an accelerator, the fused kernels against the plain code, no waiting inside a step.

`make test-gpu`, or `python tests/models/test_cuda.py`, which needs no more than torch, safetensors and pytest.
"""

from __future__ import annotations

import itertools
import sys

import pytest
import torch

from loopscope.kernels.choice import implementation
from loopscope.models.batch import Batch
from loopscope.models.generate import generate
from loopscope.models.layers.linear import gated_silu_joined
from loopscope.models.layers.residual import RMSNorm, add_branch
from loopscope.models.layers.rope import Rotary, rotate, rotate_own
from loopscope.models.walk import Walk

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]
LOW = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
FAMILIES = ["ouro", "huginn", "retrofit_llama", "retrofit_olmo", "nanbeige", "hrm_text:attention=causal", "loopus"]
ROWS = [[5, 9, 1, 60, 33, 2, 17], [7, 8, 30, 4], [99]]


@pytest.fixture(autouse=True)
def full_float32():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("family", FAMILIES)
def test_states_and_logits_are_those_of_the_cpu(golden_model, family):
    here, there = golden_model(family), golden_model(family).to("cuda")
    batch = Batch.from_rows(ROWS, source_rows=[1, 2, 3])
    valid = batch.attention_mask
    expected = here.states(batch, [1, 4])
    for t, state in there.states(batch, [1, 4]).items():
        assert (state.cpu() - expected[t])[valid].abs().max() < 5e-5
        with torch.no_grad():
            for dtype in (None, torch.float64):
                found = there.readout(state, dtype=dtype).cpu()
                assert (found - here.readout(expected[t], dtype=dtype))[valid].abs().max() < 5e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_never_waits_for_the_device(golden_model, family):
    model = golden_model(family, dtype=torch.bfloat16).to("cuda")
    with torch.no_grad():
        walk = Walk.of(model, Batch.from_rows(ROWS))
        walk.advance()
        torch.cuda.set_sync_debug_mode("error")
        try:
            state = walk.advance()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert state.isfinite().all()


@pytest.mark.parametrize("family", FAMILIES)
def test_cached_generation_equals_reference(golden_model, family):
    model = golden_model(family).to("cuda")
    options = {"max_new_tokens": 8, "depth": 3, "source_rows": [3, 4, 5], "eos_ids": []}
    assert generate(model, ROWS, **options) == generate(model, ROWS, impl="reference", **options)


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to("cuda", dtype)


def norm_of(width, dtype, seed=9, eps=1e-6):
    norm = RMSNorm(width, eps).to("cuda", dtype)
    with torch.no_grad():
        norm.weight.copy_(1 + 0.3 * normal(width, seed=seed))
    return norm


def differing(found, expected):
    """The share of entries that differ, by one unit in the last place before the last product at most."""
    assert found.dtype == expected.dtype
    unit = 2.0 ** (-7 if found.dtype == torch.bfloat16 else -10)
    torch.testing.assert_close(found, expected, rtol=2 * unit, atol=2.0**-19)
    return (found != expected).float().mean().item()


@LOW
@pytest.mark.parametrize("shape", [(1, 1), (3, 37), (2, 70, 2048), (2, 9, 5280)])
@torch.no_grad()
def test_the_fused_norm(shape, dtype):
    norm, x = norm_of(shape[-1], dtype), normal(*shape, dtype=dtype)
    assert differing(norm(x, impl="triton"), norm(x, impl="reference")) < 0.01
    wider = normal(2, 3, shape[-1] + 24, dtype=dtype)[..., 8 : 8 + shape[-1]]
    assert differing(norm(wider, impl="triton"), norm(wider, impl="reference")) < 0.02


@LOW
@pytest.mark.parametrize("present", list(itertools.product([False, True], repeat=3)))
@pytest.mark.parametrize("width", [37, 2048, 5280])
@torch.no_grad()
def test_the_fused_residual_sum(width, present, dtype):
    state, branch = (normal(3, 20, width, dtype=dtype, seed=seed) for seed in (0, 1))
    norms = {
        name: norm_of(width, dtype, seed=seed, eps=10.0 ** (-6 + 2 * seed)) if is_there else None
        for seed, (name, is_there) in enumerate(zip(("branch_norm", "sum_norm", "next_norm"), present, strict=True))
    }
    found = add_branch(state, branch, impl="triton", **norms)
    expected = add_branch(state, branch, impl="reference", **norms)
    # A norm's last bit, where it flips, may flip those that come after it: two roundings apart at most.
    unit = 2.0 ** (-7 if dtype == torch.bfloat16 else -10)
    for one, other in zip(found, expected, strict=True):
        assert (one != other).float().mean() < 0.01
        torch.testing.assert_close(one, other, rtol=2 * unit, atol=8 * unit)


@LOW
@pytest.mark.parametrize("shape", [(1, 2), (3, 26), (2, 40, 2 * 5632), (2, 3, 2 * 17920)])
@torch.no_grad()
def test_the_fused_activation(shape, dtype):
    both = 4 * normal(*shape, dtype=dtype)
    assert differing(gated_silu_joined(both, False, "triton"), gated_silu_joined(both, False, "reference")) < 0.02


@LOW
@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize(("heads", "width"), [(3, 10), (32, 128), (110, 96)])
@torch.no_grad()
def test_the_rotation_in_place_is_the_same_bit_by_bit(layout, rounded, heads, width, dtype):
    tables = Rotary(width, 5e4, layout, rounded).tables(torch.arange(40, device="cuda")[None], dtype)
    joined, bias = normal(2, 40, heads + 5, width, dtype=dtype), normal(heads, width, dtype=dtype, seed=1)
    before = joined.clone()
    found = rotate_own(joined[:, :, :heads], tables, bias, "triton")
    assert torch.equal(found, rotate(before[:, :, :heads] + bias, tables))
    assert torch.equal(joined[:, :, heads:], before[:, :, heads:])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_with_and_without_kernels(golden_model, family):
    model = golden_model(family, dtype=torch.bfloat16).to("cuda")
    batch = Batch.from_rows(ROWS, source_rows=[1, 2, 3])
    valid, positions = batch.attention_mask, torch.tensor([[2, 0], [0, 6], [0, 2]])
    found = model.states(batch, [1, 2])
    with torch.no_grad():
        logits = model.readout(found[1], positions)
    with implementation("reference"), torch.no_grad():
        expected, expected_logits = model.states(batch, [1, 2]), model.readout(found[1], positions)
    for t, tolerance in ((1, 0.01), (2, 0.02)):
        assert (found[t] - expected[t])[valid].float().norm() <= tolerance * expected[t][valid].float().norm()
    assert (logits - expected_logits).float().norm() <= 0.01 * expected_logits.float().norm()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 5e-5), (torch.float64, 1e-10)])
def test_a_readout_at_positions(golden_model, family, dtype, atol):
    model = golden_model(family).to("cuda")
    batch = Batch.from_rows(ROWS, source_rows=[1, 2, 3])
    state, positions = model.states(batch, [2])[2], torch.tensor([[1, 3], [0, 6], [0, 2], [2, 0]])
    with torch.no_grad():
        everything = model.readout(state, dtype=dtype)
        for where in (positions, positions.cuda()):
            found = model.readout(state, where, dtype)
            expected = everything[positions[:, 0], positions[:, 1]]
            torch.testing.assert_close(found, expected, rtol=0, atol=atol)


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-m", "gpu", "-p", "no:cacheprovider"]))
