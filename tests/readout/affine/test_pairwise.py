"""Two blocks merged are what one sum over both of them says."""

from __future__ import annotations

import pytest
import torch

from loopscope.readout.affine.moments import LogMass, block_sums, merge_log_mass, merge_moments

SCALES = [0.0, 0.3, 1.0]


@pytest.fixture(params=[0.0, 50.0, -50.0], ids=["alike", "b-leads", "a-leads"])
def blocks(request):
    g = torch.Generator().manual_seed(1)
    z0, v = (torch.randn(5, 40, generator=g, dtype=torch.float64) for _ in range(2))
    z0[:, 25:] += request.param
    return z0, v, (slice(0, 25), slice(25, 40))


def test_moments_are_those_of_the_union(blocks):
    z0, v, (first, second) = blocks
    v_y = v[:, :1]
    a, b = (block_sums(z0[:, here], v[:, here], v_y, SCALES, 4)[0] for here in (first, second))
    merged, factor_a, factor_b = merge_moments(a, b, torch.tensor(SCALES, dtype=torch.float64))
    z = z0.unsqueeze(1) + torch.tensor(SCALES, dtype=torch.float64)[:, None] * v.unsqueeze(1)
    p, x = torch.softmax(z, -1), v.unsqueeze(1)
    mean = (p * x).sum(-1)
    torch.testing.assert_close(merged.v_d + merged.mean, mean, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(merged.slope / merged.mass, v_y - mean, rtol=1e-12, atol=1e-13)
    for order, total in enumerate(merged.central, 2):
        expected = (p * (x - mean.unsqueeze(-1)) ** order).sum(-1)
        torch.testing.assert_close(total / merged.mass, expected, rtol=1e-11, atol=1e-13)
    assert torch.equal(torch.maximum(factor_a, factor_b), torch.ones_like(factor_a))


def test_the_log_mass_is_the_unions(blocks):
    z0, v, both = blocks
    scales = torch.tensor(SCALES, dtype=torch.float64)
    a, b = (block_sums(z0[:, here], v[:, here], v[:, :1], SCALES, 0)[0] for here in both)
    merged = merge_log_mass(LogMass(a.z0_d, a.v_d, a.others), LogMass(b.z0_d, b.v_d, b.others), scales)
    found = merged.z0_d + scales * merged.v_d + torch.log1p(merged.others)
    expected = torch.logsumexp(z0.unsqueeze(1) + scales[:, None] * v.unsqueeze(1), -1)
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-14)
    assert torch.equal(merged.others, merge_moments(a, b, scales)[0].others)
