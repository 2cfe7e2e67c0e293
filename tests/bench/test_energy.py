"""Joules are the driver's; where there is no such driver there are none."""

from __future__ import annotations

import pytest
import torch

from loopscope.bench.energy import meter


def test_a_cpu_has_no_meter():
    assert meter(torch.device("cpu")) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_twice_the_work_takes_more_energy():
    device = torch.device("cuda")
    counts = meter(device)
    if counts is None:
        pytest.skip("the driver keeps no count")
    a = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
    found = counts.figures({"one": lambda: a @ a, "four": lambda: [a @ a for _ in range(4)]})
    assert 2.0 * found["joules_one"] < found["joules_four"] < 8.0 * found["joules_one"]
    assert 100.0 < found["megahertz_one"] < 4000.0
