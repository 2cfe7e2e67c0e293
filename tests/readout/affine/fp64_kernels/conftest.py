"""The float64 kernels of an affine path on a CPU: collected only where Triton's interpreter runs them.

TRITON_INTERPRET=1 pytest tests/readout/affine/fp64_kernels
"""

from __future__ import annotations

import importlib
import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore = [] if INTERPRETED else ["test_even_kernel.py", "test_own_scale_kernel.py"]


@pytest.fixture
def interpreted():
    """Inference with the kernels, interpreted."""
    from loopscope.kernels.choice import implementation

    with torch.no_grad(), implementation("triton"):
        yield


@pytest.fixture
def launches(monkeypatch):
    """The names of the kernels launched."""
    names = []
    module = importlib.import_module("loopscope.readout.affine.kernel_sums")

    def counted(kernel, *arguments, launch=module.launch, **options):
        names.append(kernel.fn.__name__)
        launch(kernel, *arguments, **options)

    monkeypatch.setattr(module, "launch", counted)
    return names
