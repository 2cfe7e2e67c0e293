"""The fused kernels on a CPU: collected only where Triton's interpreter runs them, in a process of their own.

TRITON_INTERPRET=1 pytest tests/readout/affine/fused
"""

from __future__ import annotations

import importlib
import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore = (
    [] if INTERPRETED else ["test_survey.py", "test_path.py", "test_growth.py", "test_chain.py", "test_nodes.py"]
)


def _with_bfloat16(create_dot):
    """The interpreter multiplies BF16 matrices as the integers that hold them; here it takes them for numbers."""
    import numpy as np
    import triton.language as tl

    def dot(self, a, b, d, *options):
        if a.dtype.scalar == tl.bfloat16:
            handle = importlib.import_module("triton.runtime.interpreter").TensorHandle
            a, b = (handle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32) for x in (a, b))
        return create_dot(self, a, b, d, *options)

    return dot


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    """The kernels, interpreted; on a GPU they run as they are."""
    from loopscope.kernels.choice import implementation

    if not INTERPRETED:
        yield
        return
    builder = importlib.import_module("triton.runtime.interpreter").InterpreterBuilder
    monkeypatch.setattr(builder, "create_dot", _with_bfloat16(builder.create_dot))
    with implementation("triton"):
        yield


@pytest.fixture
def states():
    """Two states, a head and labels: `states(tokens, vocabulary, width, scale=…)`."""

    def make(tokens, vocabulary, width, *, scale=1.0, step=None, bias=False, dtype=torch.bfloat16, device="cpu"):
        chance = torch.Generator().manual_seed(tokens * vocabulary + width)
        h = torch.randn(tokens, width, generator=chance)
        other = torch.randn(tokens, width, generator=chance)
        h_plus = other if step is None else h + step * other
        weight = scale * torch.randn(vocabulary, width, generator=chance) / width**0.5
        shift = torch.randn(vocabulary, generator=chance).to(dtype).to(device) if bias else None
        targets = torch.randint(vocabulary, (tokens,), generator=chance).to(device)
        return *(x.to(dtype).to(device) for x in (h, h_plus, weight)), shift, targets

    return make


@pytest.fixture
def plain():
    """The same quantities in plain float32: two products, log_softmax, softmax moments."""

    def quantities(h, h_plus, weight, bias, targets, count, moments_at):
        before, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, False
        z0, z1 = (torch.nn.functional.linear(x.float(), weight.float(), None) for x in (h, h_plus))
        torch.backends.cuda.matmul.allow_tf32 = before
        if bias is not None:
            z0, z1 = z0 + bias.float(), z1 + bias.float()
        v, y = z1 - z0, targets[:, None]
        u = torch.stack([torch.log_softmax(z0 + k / (count - 1) * v, -1).gather(1, y)[:, 0] for k in range(count)], 1)
        first, second = [], []
        for alpha in moments_at:
            p = torch.softmax(z0 + alpha * v, -1)
            mean = (p * v).sum(1, keepdim=True)
            first.append((v.gather(1, y) - mean)[:, 0])
            second.append(-(p * (v - mean) ** 2).sum(1))
        lp, lq = torch.log_softmax(z0, -1), torch.log_softmax(z1, -1)
        h0, h1 = -(lp.exp() * lp).sum(1), -(lq.exp() * lq).sum(1)
        return {
            "gains": u - u[:, :1],
            "first": torch.stack(first, -1),
            "second": torch.stack(second, -1),
            "initial": u[:, 0],
            "divergence": (lp.exp() * (lp - lq)).sum(1),
            "reverse_divergence": (lq.exp() * (lq - lp)).sum(1),
            "initial_entropy": h0,
            "final_entropy": h1,
            "entropy_change": h1 - h0,
            "spread": v.amax(1) - v.amin(1),
        }

    return quantities


@pytest.fixture
def named():
    """A survey's quantities by the names of `plain`."""

    def of(survey):
        distributions = {
            name: getattr(survey.distributions, name)
            for name in (
                "divergence",
                "reverse_divergence",
                "initial_entropy",
                "final_entropy",
                "entropy_change",
            )
        }
        return {
            "gains": survey.gains,
            "first": survey.derivatives[1],
            "second": survey.derivatives[2],
            "initial": survey.initial,
            "spread": survey.spread,
            **distributions,
        }

    return of
