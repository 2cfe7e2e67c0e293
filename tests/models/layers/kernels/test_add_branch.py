"""The fused residual sum and norms against the plain code, in every combination of norms."""

from __future__ import annotations

import itertools

import pytest
import torch

from loopscope.models.layers.blocks import RMSNorm, add_branch


def normal(*shape, dtype, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def norms_of(width, dtype, present):
    norms = []
    for seed, is_there in enumerate(present):
        norm = RMSNorm(width, 10.0 ** (-6 + 2 * seed)).to(dtype)
        with torch.no_grad():
            norm.weight.copy_(1 + 0.3 * normal(width, dtype=torch.float32, seed=20 + seed))
        norms.append(norm if is_there else None)
    return dict(zip(("branch_norm", "sum_norm", "next_norm"), norms, strict=True))


@pytest.mark.parametrize("present", list(itertools.product([False, True], repeat=3)))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_equals_the_plain_code(interpreted, launches, present, dtype):
    state, branch = normal(2, 5, 37, dtype=dtype), normal(2, 5, 37, dtype=dtype, seed=1)
    norms = norms_of(37, dtype, present)
    found = add_branch(state, branch, **norms)
    assert launches == ["_add_branch"]
    expected = add_branch(state, branch, impl="reference", **norms)
    # A norm's last bit, where it flips, may flip the sum's and the next norm's: two roundings apart at most.
    unit = 2.0 ** (-7 if dtype == torch.bfloat16 else -10)
    for one, other in zip(found, expected, strict=True):
        assert (one != other).float().mean() < 0.01
        torch.testing.assert_close(one, other, rtol=2 * unit, atol=4 * unit)
    if not any(present):
        assert torch.equal(found.state, expected.state)
    assert (found.normed is found.state) is (norms["next_norm"] is None)


def test_takes_any_layout(interpreted):
    state = normal(4, 3, 10, dtype=torch.bfloat16).transpose(0, 1)
    branch = normal(3, 4, 20, dtype=torch.bfloat16)[..., ::2]
    assert torch.equal(add_branch(state, branch).state, state + branch)
