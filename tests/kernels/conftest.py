"""The kernels are collected only where Triton's interpreter runs them, in a process of their own.

TRITON_INTERPRET=1 pytest tests/kernels/test_product_kernel.py
"""

from __future__ import annotations

import importlib
import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore = [] if INTERPRETED else ["test_product_kernel.py"]


def _bf16(bits):
    return torch.from_numpy(bits.view("int16").copy()).view(torch.bfloat16).float().numpy()


@pytest.fixture
def interpreted(monkeypatch):
    """Triton's interpreter, with BF16 as the hardware has it: rounded, not cut off, and multiplied as numbers."""
    import triton.language as tl

    interpreter = importlib.import_module("triton.runtime.interpreter")
    convert, builder = interpreter._convert_float, interpreter.InterpreterBuilder
    dot = builder.create_dot

    def rounded(value, before, after, mode):
        if (before, after) != (tl.float32, tl.bfloat16):
            return convert(value, before, after, mode)
        return torch.from_numpy(value.copy()).to(torch.bfloat16).view(torch.int16).numpy().view("uint16")

    def multiplied(self, a, b, d, *rest):
        wide = [
            interpreter.TensorHandle(_bf16(x.data), tl.float32) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b)
        ]
        return dot(self, *wide, d, *rest)

    monkeypatch.setattr(interpreter, "_convert_float", rounded)
    monkeypatch.setattr(builder, "create_dot", multiplied)
    with torch.no_grad():
        yield


@pytest.fixture
def factors():
    """x [rows, inputs] in float32 over a wide range, and a BF16 matrix [outputs, inputs]."""

    def make(rows, inputs, outputs, spread=0.0):
        g = torch.Generator().manual_seed(rows + 7 * inputs + 31 * outputs)
        x = torch.randn(rows, inputs, generator=g) * torch.exp(spread * torch.randn(rows, inputs, generator=g))
        return x, torch.randn(outputs, inputs, generator=g).to(torch.bfloat16)

    return make


@pytest.fixture
def error():
    """Root mean square of a product's error, in units of Σ |x||w|."""

    def measured(found, x, weight):
        exact, scale = x.double() @ weight.double().T, x.double().abs() @ weight.double().abs().T
        return float(((found.double() - exact) / scale).square().mean().sqrt())

    return measured
