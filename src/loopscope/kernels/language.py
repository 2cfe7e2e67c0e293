"""Triton as the kernels see it, with the types that it does not declare; launches; a probe of whether it works here.

The kernels' modules can be imported without Triton; only a launch needs it. Within `compile_only` a launch on a GPU
compiles in a thread and runs nothing; a later launch of the same kernel waits for that (`is_compiling` tells whether
there is anything to wait for).
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
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


VARYING = (
    *("tokens", "rows", "positions", "splits", "tiles_per_split", "size", "count"),
    *("groups", "queries", "keys", "first", "mask_stride", "order_stride", "length"),
)
"""Arguments that differ from batch to batch: a kernel is not compiled anew for those that are 1 or divisible by 16."""


def jit(kernel: Callable[..., Any]) -> Any:
    """`triton.jit` where there is Triton."""
    return kernel if triton is None else triton.jit(kernel, do_not_specialize=VARYING)


def constant(value: float) -> Any:
    """A number that a module gives a name and its kernels read; the host reads it with `int` or as an index."""
    return value if tl is None else tl.constexpr(value)


def constants(count: int) -> tuple[Any, ...]:
    """0, 1, … for the names of a buffer's slots, each a `constant`."""
    return tuple(constant(slot) for slot in range(count))


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    on: Tensor,
    *arguments: Any,
    warps: int = 4,
    fusion: bool = False,
    registers: int | None = None,
    **constants: Any,
) -> None:
    """Runs a kernel on the device of `on`.

    Without `fusion` products are never contracted with the sums that follow them: that would be one rounding fewer
    than in the plain code. `registers` is the most that a thread may take.
    """
    if triton is None:
        raise LoopscopeError("the kernels need Triton, which is not installed: pip install triton")
    options = {"num_warps": warps, "enable_fp_fusion": fusion, **constants}
    if registers is not None:
        options["maxnreg"] = registers
    pool = _compiling.get()
    if pool is not None and on.is_cuda:
        waited = _pending.setdefault(kernel, {})
        if (same := _variant(options)) not in waited:
            waited[same] = pool.submit(_compile, kernel, grid, on, arguments, options)
        return
    if waited := _pending.get(kernel, {}):
        if (compiled := waited.pop(_variant(options), None)) is not None:
            compiled.exception()  # waits; what went wrong shows when it is compiled again
        if not waited:
            del _pending[kernel]
    elsewhere = on.is_cuda and on.device.index != torch.cuda.current_device()
    with torch.cuda.device(on.device) if elsewhere else contextlib.nullcontext():
        kernel[grid](*arguments, **options)


_compiling: ContextVar[ThreadPoolExecutor | None] = ContextVar("compiling", default=None)
_pending: dict[Any, dict[str, Future[None]]] = {}
"""What is being compiled, by kernel and by the constants that it is compiled for."""
_COMPILERS = 8


@contextlib.contextmanager
def compile_only() -> Iterator[None]:
    """Launches on a GPU compile in threads and run nothing, so that what they would write is never to be read."""
    pool = ThreadPoolExecutor(_COMPILERS, "loopscope-compiling")
    token = _compiling.set(pool)
    try:
        yield
    finally:
        _compiling.reset(token)
        pool.shutdown(wait=False)


def is_compiling() -> bool:
    """Whether a kernel that nobody has launched yet is still being compiled ahead."""
    return any(not compiled.done() for waited in list(_pending.values()) for compiled in list(waited.values()))


def wait_for_compilers() -> None:
    """Until nothing is being compiled ahead; what went wrong shows when it is compiled again."""
    for waited in list(_pending.values()):
        for compiled in list(waited.values()):
            compiled.exception()


def _variant(options: dict[str, Any]) -> str:
    return repr(sorted(options.items()))


def _compile(
    kernel: Any, grid: tuple[int, ...], on: Tensor, arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    with torch.cuda.device(on.device):
        # Asking for what runs it builds that, too: with a C compiler, which takes as long as a small kernel.
        getattr(kernel.warmup(*arguments, grid=grid, **options), "run", None)


def descriptor(matrix: Tensor, block: list[int]) -> Any:
    """A matrix as the copy engine of the device reads it, a block at a time; what lies outside it reads as zero."""
    module = importlib.import_module("triton.tools.tensor_descriptor")
    return module.TensorDescriptor.from_tensor(matrix, block)


def power_of_two(size: int) -> int:
    """The smallest power of two that is not smaller."""
    return 1 << (size - 1).bit_length()


def probe(device: torch.device) -> None:
    """Runs it, within `compile_only` too; whatever is in the way is raised."""
    with _probing:  # what Triton prepares once is not prepared in two threads at the same time
        token = _compiling.set(None)
        try:
            out = torch.zeros(32, device=device)
            launch(_probe, (1,), out, out, BLOCK=32)
            torch.cuda.synchronize(device)
        finally:
            _compiling.reset(token)


_probing = threading.Lock()


@jit
def _probe(out: Value, BLOCK: constexpr) -> None:
    tl.store(out + tl.arange(0, BLOCK), 1.0)
