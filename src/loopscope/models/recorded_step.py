"""A step recorded once and played again: CUDA graphs, where a device runs a loop faster than the host launches it.

A loop of a small model is some hundred launches of little work each, and all loops of a batch launch the same ones. The
first step of a walk runs as it is; the second is recorded while the device is still at the first; from there on a step
is one launch. The kernels are the same, and so is every bit. Only steps that promise to do the same whatever their
depth (`LoopedModule.alike`) are recorded, and only where that pays.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor

from loopscope.kernels.choice import chosen, is_differentiating
from loopscope.models.protocol import Context, LoopedModel

LEAST_STEPS = 4
"""Of a walk: the first runs as it is, and recording takes the host as long as one more."""
MOST_WORK = 5e10
"""Tokens times the square of the state's width: beyond that a device takes longer for a layer than a host."""
Step = Callable[[Tensor], Tensor]


def can_record(model: LoopedModel, context: Context, steps: int) -> bool:
    """Whether the steps of a walk to this depth are worth it."""
    state = context.state
    if not (state.is_cuda and steps >= LEAST_STEPS and getattr(model, "alike", False)):
        return False
    if is_differentiating() or chosen() == "reference" or getattr(context.extra, "cache", None) is not None:
        return False
    return state.shape[:-1].numel() * float(state.shape[-1]) ** 2 <= MOST_WORK


class RecordedStep:
    """The steps of one walk."""

    def __init__(self, step: Step) -> None:
        self._step, self._called = step, False
        self._graph: torch.cuda.CUDAGraph | None = None
        self._given = self._made = torch.empty(0)

    def __call__(self, state: Tensor) -> Tensor:
        """The next state, in memory of its own."""
        if not self._called:
            self._called = True
            return self._step(state)
        if self._graph is None and not self._record(state):
            return self._step(state)
        assert self._graph is not None
        self._given.copy_(state)
        self._graph.replay()
        return self._made.clone()

    def _record(self, state: Tensor) -> bool:
        """Whether it worked: memory may not suffice, and a kernel may refuse to be recorded."""
        studio = _studio(state.device)
        if not studio.works:
            return False
        self._given, graph = torch.empty_like(state), torch.cuda.CUDAGraph()
        studio.stream.wait_stream(torch.cuda.current_stream(state.device))
        with torch.cuda.stream(studio.stream):
            try:
                graph.capture_begin(studio.pool, capture_error_mode="thread_local")
                self._made = self._step(self._given)
                graph.capture_end()
            except Exception:
                with suppress(RuntimeError):
                    graph.capture_end()
                studio.works = False
                return False
        self._graph = graph
        studio.kept.append(graph)
        return True


class _Studio:
    """Where the steps of one device are recorded.

    Attributes:
        stream: on which; cuBLAS knows it already.
        pool: the memory that graphs share, which must not be without an owner.
        kept: the last ones: a batch may be recorded while the one before it still runs.
        works: False from the first failure on.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()
        self.kept: deque[torch.cuda.CUDAGraph] = deque(maxlen=2)
        self.works = True
        with torch.cuda.stream(self.stream):
            small = torch.zeros(16, 16, dtype=torch.bfloat16, device=device)
            torch.mm(small, small)


_studio = functools.cache(_Studio)


def forget() -> None:
    """Give back the memory of what was recorded, once it has run."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    _studio.cache_clear()
