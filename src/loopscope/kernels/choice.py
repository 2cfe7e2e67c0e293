"""Which implementation of a fused operation runs: the Triton kernel, or the plain torch code it replaces.

`auto` takes the kernels on CUDA, in BF16 and FP16, where nothing is differentiated and Triton works; `reference`
never takes them; `triton` takes them on any device (Triton's interpreter runs them on a CPU) and lets a failing
compiler be seen. The environment variable LOOPSCOPE_KERNELS sets it for a process, `implementation` for a block
of code, an argument for a call.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, cast, get_args

import torch
import torch.autograd.forward_ad as forward_mode
from torch import Tensor

from loopscope.errors import LoopscopeError

Implementation = Literal["auto", "triton", "reference"]

VARIABLE = "LOOPSCOPE_KERNELS"
_DTYPES = (torch.bfloat16, torch.float16)
_chosen: ContextVar[Implementation | None] = ContextVar("kernels", default=None)


@contextmanager
def implementation(name: Implementation) -> Iterator[None]:
    """Uses one implementation within the block.

    >>> with implementation("reference"):
    ...     takes_kernel(torch.zeros(2, dtype=torch.bfloat16))
    False
    """
    token = _chosen.set(_checked(name, "implementation"))
    try:
        yield
    finally:
        _chosen.reset(token)


def chosen(impl: Implementation | None = None) -> Implementation:
    """What was set for the call, the block of code or the process, in this order."""
    return impl or _chosen.get() or _from_environment()


def is_differentiating() -> bool:
    """Whether gradients or forward-mode derivatives may be recorded, which no kernel here passes on."""
    return torch.is_grad_enabled() or forward_mode._current_level >= 0


def takes_kernel(x: Tensor, impl: Implementation | None = None, dtypes: tuple[torch.dtype, ...] = _DTYPES) -> bool:
    """Whether an operation on `x` runs as a Triton kernel; `impl` overrules what was set."""
    if type(x) is not Tensor or x.dtype not in dtypes or is_differentiating():
        return False
    if torch.compiler.is_compiling():
        return False  # torch's compiler fuses the plain code itself
    how = chosen(impl)
    if how == "reference" or x.numel() == 0:
        return False
    if how == "triton" and x.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise LoopscopeError(
            f"the Triton kernels need a GPU, and this is on the CPU: leave {VARIABLE}=triton out, or set "
            "TRITON_INTERPRET=1, under which they run slowly"
        )
    return how == "triton" or (x.is_cuda and _works(x.device))


@functools.cache
def _from_environment() -> Implementation:
    return _checked(os.environ.get(VARIABLE, "auto"), VARIABLE)


def _checked(name: str, source: str) -> Implementation:
    if name not in get_args(Implementation):
        raise LoopscopeError(f"{source} is {name!r}; choose one of {', '.join(get_args(Implementation))}")
    return cast(Implementation, name)


@functools.cache
def _works(device: torch.device) -> bool:
    """Tries one small kernel: Triton may be missing, or have no compiler to build its launchers with."""
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        from loopscope.kernels.language import probe

        probe(device)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        warnings.warn(
            f"Triton cannot compile for {device} ({type(error).__name__}: {reason}); plain torch operations run "
            f"instead, slower. {VARIABLE}=reference says so without this message",
            stacklevel=2,
        )
        return False
    return True
