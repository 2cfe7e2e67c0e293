"""Two blocks merged are what one sum over both of them says."""

from __future__ import annotations

import pytest
import torch

from loopscope.readout.affine.moments import block_moments, intervals, merge

SCALES = [0.0, 0.3, 1.0]


@pytest.fixture(params=[0.0, 50.0, -50.0], ids=["alike", "b-leads", "a-leads"])
def blocks(request):
    g = torch.Generator().manual_seed(1)
    z0, v = (torch.randn(5, 40, generator=g, dtype=torch.float64) for _ in range(2))
    z0[:, 25:] += request.param
    return z0, v, (slice(0, 25), slice(25, 40))


def test_moments_are_those_of_the_union(blocks):
    z0, v, (first, second) = blocks
    v_y, scales = v[:, :1], torch.tensor(SCALES, dtype=torch.float64)
    layout = intervals(SCALES, None, 0.0)
    a, b = (block_moments(z0[:, here], v[:, here], v_y, layout, None, 4) for here in (first, second))
    merged = merge(a, b, scales)
    z = z0.unsqueeze(1) + scales[:, None] * v.unsqueeze(1)
    p, x = torch.softmax(z, -1), v.unsqueeze(1)
    mean, mass = (p * x).sum(-1), 1.0 + merged.others
    torch.testing.assert_close(merged.v_d + merged.mean, mean, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(merged.slope / mass, v_y - mean, rtol=1e-12, atol=1e-13)
    for order, total in enumerate(merged.central, 2):
        expected = (p * (x - mean.unsqueeze(-1)) ** order).sum(-1)
        torch.testing.assert_close(total / mass, expected, rtol=1e-11, atol=1e-13)
    found = merged.z0_d + scales * merged.v_d + torch.log1p(merged.others)
    torch.testing.assert_close(found, torch.logsumexp(z, -1), rtol=1e-14, atol=1e-14)
