"""The kernels are collected only where Triton's interpreter runs them, in a process of their own.

TRITON_INTERPRET=1 pytest tests/readout/affine/kernel
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import pytest
import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[4] / "benchmarks")]
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore = [] if INTERPRETED else ["test_kernel.py"]


@pytest.fixture(autouse=True)
def interpreted():
    """The kernels, interpreted; on a GPU they run as they are."""
    from loopscope.kernels.choice import implementation

    with torch.no_grad(), warnings.catch_warnings():
        if not INTERPRETED:
            yield
            return
        warnings.simplefilter("ignore", RuntimeWarning)  # NumPy warns where exponentials overflow
        with implementation("triton"):
            yield


@pytest.fixture
def states():
    """Two states, a head and labels: `states(tokens, vocabulary, width, scale=…)`."""

    def make(tokens, vocabulary, width, *, scale=1.0, step=0.5, bias=False, dtype=torch.bfloat16, device="cpu"):
        chance = torch.Generator().manual_seed(tokens * vocabulary + width)
        h, other = torch.randn(2, tokens, width, generator=chance)
        weight = scale * torch.randn(vocabulary, width, generator=chance) / width**0.5
        shift = torch.randn(vocabulary, generator=chance).to(dtype).to(device) if bias else None
        targets = torch.randint(vocabulary, (tokens,), generator=chance).to(device)
        return *(x.to(dtype).to(device) for x in (h, h + step * other, weight)), shift, targets

    return make
