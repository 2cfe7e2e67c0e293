"""Where affine logits come from: two stored matrices, or two states and a linear head, some tokens at a time.

On a CPU groups of tokens go side by side, each on its share of torch's threads: small operations on small arrays gain
little from torch's own threads, which all wait for the last at the end of every operation.

Shapes: T reference tokens, t of them at a time, V vocabulary entries, b of them, D hidden width.
"""

from __future__ import annotations

import contextvars
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor

from loopscope.readout.checks import require_finite, require_matrix, require_same_shape

SUMMED = 256
"""Products of float32 numbers that are added up in float32 on a CPU, before their sum is added up in float64."""

_COLUMNS = 1024
"""Rows of the head that a CPU converts and multiplies at a time."""


class LogitBlock(NamedTuple):
    """Initial logits z(0) and displacements v of some tokens, float64 [t, V] each."""

    z0: Tensor
    v: Tensor


class StoredLogits:
    """Two matrices that are already there."""

    def __init__(self, z0_TV: Tensor, v_TV: Tensor) -> None:
        require_matrix("z0", z0_TV)
        require_matrix("v", v_TV)
        require_same_shape("z0", z0_TV, "v", v_TV)
        require_finite("z0", z0_TV)
        require_finite("v", v_TV)
        self._z0_TV, self._v_TV = z0_TV.detach(), v_TV.detach()
        self.tokens, self.vocabulary = z0_TV.shape
        self.device = z0_TV.device

    @property
    def is_float64(self) -> bool:
        """Whether blocks are the matrices themselves."""
        return self._z0_TV.dtype == self._v_TV.dtype == torch.float64

    def block(self, rows: slice, targets_t: Tensor) -> LogitBlock:
        """Rows of the matrices."""
        return LogitBlock(self._z0_TV[rows].double(), self._v_TV[rows].double())

    def states(self, rows: slice) -> tuple[Tensor, Tensor]:
        """The same tokens for autograd: the logits themselves are the state."""
        return self._z0_TV[rows].double(), self._v_TV[rows].double()

    def readout(self, state: Tensor) -> Tensor:
        """The logits of a state."""
        return state


class HeadLogits:
    """A linear head over two stored states: z(0) = H Wᵀ + b and v = (H⁺ − H) Wᵀ.

    D = H⁺ − H is formed in the readout's dtype from the states as they are stored. Both products are taken in that
    dtype with TF32 off; what follows is float64.
    """

    def __init__(
        self, h_TD: Tensor, h_plus_TD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, dtype: torch.dtype
    ) -> None:
        self.h_TD, self.h_plus_TD = h_TD.detach(), h_plus_TD.detach()
        self.weight_VD = weight_VD.detach()
        self.bias_V = None if bias_V is None else bias_V.detach()
        self.dtype = dtype
        self.tokens, self.vocabulary = int(h_TD.shape[0]), int(weight_VD.shape[0])
        self.device = h_TD.device

    @functools.cached_property
    def _hd_T2D(self) -> Tensor:  # noqa: N802 - its shape
        # Side by side, so that both products are one: twice the rows for each block of the head that is read.
        both = torch.empty(self.tokens, 2, self.h_TD.shape[1], dtype=self.dtype, device=self.device)
        both[:, 0] = self.h_TD
        torch.sub(self.h_plus_TD.to(self.dtype), both[:, 0], out=both[:, 1])
        return both

    @property
    def _in_parts(self) -> bool:
        return self.dtype == torch.float32 and self.device.type == "cpu" and self.h_TD.shape[1] > SUMMED

    def block(self, rows: slice, targets_t: Tensor) -> LogitBlock:
        """Both products, on a CPU with one block of the head after the other, and row by row those of the targets."""
        states_nD, on_cpu = self._hd_T2D[rows].flatten(0, 1), self.device.type == "cpu"
        columns = blocks(self.vocabulary, _COLUMNS if on_cpu else self.vocabulary)
        parts = [self._products(states_nD, self.weight_VD[some].to(self.dtype)) for some in columns]
        products_t2V = (parts[0] if len(parts) == 1 else torch.cat(parts, 1)).view(-1, 2, self.vocabulary)
        if on_cpu:  # elsewhere the look would wait for the device; results are looked at in any case
            require_finite("the logits", products_t2V)
        products_t2V = products_t2V.double()
        weight_t1D, at_t21 = (
            self.weight_VD[targets_t].to(self.dtype).unsqueeze(1),
            targets_t.view(-1, 1, 1).expand(-1, 2, 1),
        )
        precise = torch.float64 if self._in_parts else self.dtype
        own_t2 = (self._hd_T2D[rows] * weight_t1D).sum(2, dtype=precise)
        products_t2V.scatter_(2, at_t21, own_t2.double().unsqueeze(2))
        z0_tV, v_tV = products_t2V.unbind(1)
        if self.bias_V is not None:
            z0_tV += self.bias_V.double()
        return LogitBlock(z0_tV, v_tV)

    def _products(self, states_nD: Tensor, weight_bD: Tensor) -> Tensor:
        """States times a block of the head, [n, b]."""
        with full_precision_products():
            if not self._in_parts:
                return states_nD @ weight_bD.T
            parts = (states_nD[:, part] @ weight_bD[:, part].T for part in blocks(states_nD.shape[1], SUMMED))
            total_nb = next(parts).double()
            for part_nb in parts:
                total_nb += part_nb
            return total_nb

    @functools.cached_property
    def _wide_head(self) -> tuple[Tensor, Tensor | None]:
        return self.weight_VD.to(self.dtype), None if self.bias_V is None else self.bias_V.to(self.dtype)

    def states(self, rows: slice) -> tuple[Tensor, Tensor]:
        """The same tokens for autograd: H and D."""
        return self._hd_T2D[rows, 0], self._hd_T2D[rows, 1]

    def readout(self, state: Tensor) -> Tensor:
        """The logits of a state, by the whole head."""
        with full_precision_products():
            return torch.nn.functional.linear(state, *self._wide_head)


LogitSource: TypeAlias = StoredLogits | HeadLogits
"""Initial logits and their displacement for every reference token, in blocks."""


@contextmanager
def full_precision_products() -> Iterator[None]:
    """Matrix products without TF32, whatever the process has chosen for itself."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def blocks(length: int, size: int) -> Iterator[slice]:
    """Consecutive slices that cover range(length)."""
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


Result = TypeVar("Result")
_MOST = 4  # Python runs one thread at a time between operations


def workers() -> int:
    """How many groups of tokens are worked on at a time."""
    return min(_MOST, torch.get_num_threads())


def in_parallel(tasks: Sequence[Callable[[], Result]]) -> list[Result]:
    """The results of all tasks, in their order; an error in one is raised here."""
    if len(tasks) == 1 or workers() == 1:
        return [task() for task in tasks]
    pool = _pool(torch.get_num_threads(), os.getpid())
    running = [pool.submit(contextvars.copy_context().run, task) for task in tasks]
    return [task.result() for task in running]


@functools.cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads that are all started, and know how many of torch's threads are theirs.

    A forked process has none of its parent's threads, so it gets a pool of its own.
    """
    number = workers()
    all_started = threading.Barrier(number)
    pool = ThreadPoolExecutor(number, "loopscope", initializer=_begin, initargs=(threads // number,))
    for started in [pool.submit(all_started.wait) for _ in range(number)]:
        started.result()
    torch.set_num_threads(threads)  # what threads started elsewhere begin with is one setting for the process
    return pool


def _begin(threads: int) -> None:
    torch.get_num_threads()  # the first question makes a thread take over the process's setting
    torch.set_num_threads(threads)
