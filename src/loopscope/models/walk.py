"""From depth to depth: the one place that calls a model's `step` and `readout`, each with what it asks for.

What a function asks for is read from the names of its parameters (`protocol` says which names there are); `**kwargs`
ask for nothing.

Where a device runs a loop faster than the host launches it, the step is recorded once and played again (CUDA graphs).
A loop of a small model is some hundred launches of little work each, and all loops of a batch launch the same ones. The
first step of a walk runs as it is; the second is recorded while the device is still at the first; from there on a step
is one launch. The kernels are the same, and so is every bit. Only steps that promise to do the same whatever their
depth (`LoopedModule.alike`) are recorded, and only where that pays.
"""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from loopscope.errors import LoopscopeError
from loopscope.kernels.choice import chosen, is_differentiating
from loopscope.models.batch import Batch
from loopscope.models.protocol import BodyAndHead, Context, LoopedModel


def asks(function: Callable[..., Any], name: str) -> bool:
    """Whether a function has a parameter of this name.

    >>> asks(lambda state, context, *, depth: state, "depth"), asks(lambda state, context: state, "depth")
    (True, False)
    """
    method = function.forward if isinstance(function, nn.Module) else function
    code = getattr(inspect.unwrap(getattr(method, "__func__", method)), "__code__", None)
    if code is not None:
        return name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    try:
        return name in inspect.signature(method).parameters
    except (ValueError, TypeError):  # compiled code without a signature
        return False


class Walk:
    """A batch on its way through the loops of a model; it begins at depth 0.

    Attributes:
        model: whose steps are taken.
        context: what stays fixed.
        depth: steps done so far.
        state: H at that depth, [B, S, D].
        carry: what the next step is given besides, where steps ask for it.
    """

    def __init__(self, model: LoopedModel, context: Context, steps: int = 0) -> None:
        self.model, self.context = model, context
        self.depth, self.state, self.carry = 0, context.state, context.carry
        self._knows_depth, self._carries = asks(model.step, "depth"), asks(model.step, "carry")
        self._recorded = (
            RecordedStep(lambda state: model.step(state, context)) if can_record(model, context, steps) else None
        )

    @classmethod
    def of(cls, model: LoopedModel, batch: Batch, steps: int = 0) -> Walk:
        """The batch at depth 0; given how many steps it will take, a walk may record them."""
        context: object = model.embed(batch)
        if not isinstance(context, Context):
            made = type(context).__name__
            raise LoopscopeError(f"{model.name}'s embed gives a {made}: it must give loopscope.Context(state, batch)")
        return cls(model, context, steps)

    def advance(self) -> Tensor:
        """One step; returns the new state."""
        known: dict[str, Any] = {"depth": self.depth} if self._knows_depth else {}
        recorded = self._recorded
        if self._carries:
            known["carry"] = self.carry
        made = self.model.step(self.state, self.context, **known) if recorded is None else recorded(self.state)
        if self._carries:
            if not (isinstance(made, tuple) and len(made) == 2):
                raise LoopscopeError(f"{self.model.name}'s step asks for `carry`: it must return (state, carry)")
            made, self.carry = made
        if not isinstance(made, Tensor) or made.shape != self.state.shape:
            found = f"{list(made.shape)}" if isinstance(made, Tensor) else f"a {type(made).__name__}"
            raise LoopscopeError(
                f"{self.model.name}'s step must return the next state, {list(self.state.shape)} as the one it got, not "
                f"{found}; what else it carries along it asks for as `carry`"
            )
        self.depth, self.state = self.depth + 1, made
        return made

    def to(self, depth: int) -> Walk:
        """Go on to a depth that is not behind; returns this walk."""
        while self.depth < depth:
            self.advance()
        return self

    def changed(self, state: Tensor) -> Walk:
        """A second walk from here that goes on from another state, with the carry of the step that was taken."""
        other = Walk(self.model, self.context)
        other.depth, other.state, other.carry = self.depth, state, self.carry
        return other

    def read(self, positions: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Logits of the state."""
        return read(self.model, self.state, positions, dtype, self.context)


def read(
    model: LoopedModel,
    state: Tensor,
    positions: Tensor | None = None,
    dtype: torch.dtype | None = None,
    context: Context | None = None,
) -> Tensor:
    """Logits of a state; `context` is that of its rows, cut by `Context.rows` where they are some of a batch."""
    return model.readout(state, positions, dtype, **_with_context(model, model.readout, context))


def halves(model: LoopedModel, dtype: torch.dtype | None = None, context: Context | None = None) -> BodyAndHead | None:
    """The readout of the rows of `context` as body and head, where the model gives it so."""
    body_and_head = getattr(model, "body_and_head", None)
    if body_and_head is None:
        return None
    found: BodyAndHead | None = body_and_head(dtype, **_with_context(model, body_and_head, context))
    return found


def readout_asks_context(model: LoopedModel) -> bool:
    """Whether logits depend on more than the state."""
    body_and_head = getattr(model, "body_and_head", None)
    return asks(model.readout, "context") or (body_and_head is not None and asks(body_and_head, "context"))


def _with_context(model: LoopedModel, function: Callable[..., Any], context: Context | None) -> dict[str, Any]:
    if not asks(function, "context"):
        return {}
    if context is None:
        raise LoopscopeError(f"{model.name}'s readout asks for `context`: give that of the rows that are read")
    return {"context": context}


LEAST_STEPS = 4
"""Of a walk: the first runs as it is, and recording takes the host as long as one more."""
MOST_WORK = 5e10
"""Tokens times the square of the state's width: beyond that a device takes longer for a layer than a host."""


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

    def __init__(self, step: Callable[[Tensor], Tensor]) -> None:
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
        recorder = _recorder(state.device)
        if not recorder.works:
            return False
        self._given, graph = torch.empty_like(state), torch.cuda.CUDAGraph()
        recorder.stream.wait_stream(torch.cuda.current_stream(state.device))
        with torch.cuda.stream(recorder.stream):
            try:
                graph.capture_begin(recorder.pool, capture_error_mode="thread_local")
                self._made = self._step(self._given)
                graph.capture_end()
            except Exception:
                with suppress(RuntimeError):
                    graph.capture_end()
                recorder.works = False
                return False
        self._graph = graph
        recorder.kept.append(graph)
        return True


class _Recorder:
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


_recorder = functools.cache(_Recorder)


def forget_recorded_steps() -> None:
    """Give back the memory of what was recorded, once it has run."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    _recorder.cache_clear()
