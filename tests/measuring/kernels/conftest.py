"""The kernels are collected only where Triton's interpreter runs them, in a process of their own.

TRITON_INTERPRET=1 pytest tests/measuring/kernels
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore = [] if INTERPRETED else ["test_batch_pass.py"]


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter with BF16 multiplied as numbers, not as bits."""
    import triton.language as tl

    interpreter = importlib.import_module("triton.runtime.interpreter")
    builder = interpreter.InterpreterBuilder
    dot = builder.create_dot

    def wide(x: Any) -> Any:
        if x.dtype.scalar != tl.bfloat16:
            return x
        bits = torch.from_numpy(x.data.view("int16").copy())
        return interpreter.TensorHandle(bits.view(torch.bfloat16).float().numpy(), tl.float32)

    monkeypatch.setattr(builder, "create_dot", lambda self, a, b, d, *rest: dot(self, wide(a), wide(b), d, *rest))
