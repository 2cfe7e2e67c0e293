"""The Triton kernels on a CPU: the files that launch them are collected only where Triton's interpreter runs them.

Triton decides at import whether it interprets, so they have a process of their own (`test_interpreted.py`):
TRITON_INTERPRET=1 pytest tests/models/layers/kernels
"""

from __future__ import annotations

import importlib
import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
LAUNCHING = ("rms_norm", "add_branch", "gated_silu", "rotation", "models", "shared_attention")
collect_ignore = [] if INTERPRETED else [f"test_{name}.py" for name in LAUNCHING]


def _rounding(convert):
    """The interpreter cuts float32 off where the hardware rounds it to BF16; here it rounds."""
    import triton.language as tl

    def converted(value, before, after, mode):
        if (before, after) != (tl.float32, tl.bfloat16):
            return convert(value, before, after, mode)
        return torch.from_numpy(value.copy()).to(torch.bfloat16).view(torch.int16).numpy().view("uint16")

    return converted


@pytest.fixture(scope="session")
def _kernels():
    kernels = importlib.import_module("loopscope.kernels.layers")
    interpreter = importlib.import_module("triton.runtime.interpreter")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_convert_float", _rounding(interpreter._convert_float))
        yield kernels


@pytest.fixture
def interpreted(_kernels):
    """Inference with the kernels, interpreted."""
    from loopscope.kernels.choice import implementation

    with torch.no_grad(), implementation("triton"):
        yield


@pytest.fixture
def launches(_kernels, monkeypatch):
    """The names of the kernels launched."""
    names, launch = [], _kernels.launch

    def counted(kernel, *arguments, **options):
        names.append(kernel.fn.__name__)
        launch(kernel, *arguments, **options)

    monkeypatch.setattr(_kernels, "launch", counted)
    return names


@pytest.fixture(scope="session")
def ulps():
    """How many representable numbers lie between the entries of two BF16 or FP16 tensors, at most.

    One unit before the last product can be two after it.
    """

    def ordered(x):
        bits = x.view(torch.int16).to(torch.int64)
        return torch.where(bits < 0, -(bits & 0x7FFF), bits)

    def distance(a, b):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        return int((ordered(a) - ordered(b)).abs().max())

    return distance
