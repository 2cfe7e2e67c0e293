"""Triton as the kernels see it, with the types that it does not declare; launches; a probe of whether it works here.

The kernels' modules can be imported without Triton; only a launch needs it.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from loopscope.errors import LoopscopeError

try:
    triton: Any = importlib.import_module("triton")
    tl: Any = importlib.import_module("triton.language")
except ImportError:
    triton = tl = None

if TYPE_CHECKING:
    Value = Any
    constexpr = int
else:
    # What a kernel's signature names must be Triton's own: its compiler looks the annotations up.
    Value = getattr(tl, "tensor", None)
    constexpr = getattr(tl, "constexpr", None)


VARYING = ("tokens", "rows", "positions", "count", "groups", "queries", "keys", "first", "order_stride")
"""Arguments that differ from batch to batch: a kernel is not compiled anew for those that are 1 or divisible by 16."""


def jit(kernel: Callable[..., Any]) -> Any:
    """`triton.jit` where there is Triton."""
    return kernel if triton is None else triton.jit(kernel, do_not_specialize=VARYING)


def constant(value: float) -> Any:
    """A number that a module gives a name and its kernels read; the host reads it with `int` or as an index."""
    return value if tl is None else tl.constexpr(value)


def launch(
    kernel: Any, grid: tuple[int, ...], on: Tensor, *arguments: Any, warps: int = 4, fusion: bool = False, **rest: Any
) -> None:
    """Runs a kernel on the device of `on`.

    Without `fusion` products are never contracted with the sums that follow them: that would be one rounding fewer
    than in the plain code.
    """
    if triton is None:
        raise LoopscopeError("the kernels need Triton, which is not installed: pip install triton")
    elsewhere = on.is_cuda and on.device.index != torch.cuda.current_device()
    with torch.cuda.device(on.device) if elsewhere else contextlib.nullcontext():
        kernel[grid](*arguments, num_warps=warps, enable_fp_fusion=fusion, **rest)


def descriptor(matrix: Tensor, block: list[int]) -> Any:
    """A matrix as the copy engine of the device reads it, a block at a time; what lies outside it reads as zero."""
    module = importlib.import_module("triton.tools.tensor_descriptor")
    return module.TensorDescriptor.from_tensor(matrix, block)


def power_of_two(size: int) -> int:
    """The smallest power of two that is not smaller."""
    return 1 << (size - 1).bit_length()


def probe(device: torch.device) -> None:
    """Runs a small kernel; whatever is in the way is raised."""
    out = torch.zeros(32, device=device)
    launch(_probe, (1,), out, out, BLOCK=32)
    torch.cuda.synchronize(device)


@jit
def _probe(out: Value, BLOCK: constexpr) -> None:
    tl.store(out + tl.arange(0, BLOCK), 1.0)
