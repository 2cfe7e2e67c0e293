"""The kernels of Taylor mode on a CPU: collected only where Triton's interpreter runs them, in a process of their own.

TRITON_INTERPRET=1 pytest tests/readout/general/kernels
"""

from __future__ import annotations

import importlib
import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore = [] if INTERPRETED else ["test_kernels.py"]


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
    module = importlib.import_module("loopscope.readout.general.kernels")

    def counted(kernel, *arguments, launch=module.launch, **options):
        names.append(kernel.fn.__name__)
        launch(kernel, *arguments, **options)

    monkeypatch.setattr(module, "launch", counted)
    return names


@pytest.fixture
def as_close_as_plain():
    """Asserts that a function's kernel is as close to float64 as its plain float32 code, in every coefficient."""
    from loopscope.kernels.choice import implementation
    from loopscope.readout.general.core import Series

    def check(function, *coefficients):
        with implementation("reference"):
            exact = function(*(Series(c.double()) for c in coefficients)).coefficients
            plain = function(*(Series(c) for c in coefficients)).coefficients
        found = function(*(Series(c) for c in coefficients)).coefficients
        assert found.dtype == torch.float32
        assert found.shape == exact.shape
        for k in range(exact.shape[0]):
            ours, theirs = ((y[k] - exact[k]).norm() / exact[k].norm() for y in (found, plain))
            assert ours <= max(1.5 * float(theirs), 2.0**-22), k

    return check
