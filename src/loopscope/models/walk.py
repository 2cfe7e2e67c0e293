"""From depth to depth: the one place that calls a model's `step` and `readout`, each with what it asks for.

What a function asks for is read from the names of its parameters, once for each function (`protocol` says which names
there are). `**kwargs` ask for nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from loopscope.errors import LoopscopeError
from loopscope.models.batch import Batch
from loopscope.models.protocol import BodyAndHead, Context, LoopedModel
from loopscope.models.recorded_step import RecordedStep, can_record

_ASKED: WeakKeyDictionary[Any, frozenset[str]] = WeakKeyDictionary()


def asks(function: Callable[..., Any], name: str) -> bool:
    """Whether a function has a parameter of this name.

    >>> asks(lambda state, context, *, depth: state, "depth"), asks(lambda state, context: state, "depth")
    (True, False)
    """
    if isinstance(function, nn.Module):
        function = function.forward
    held = getattr(function, "__func__", function)  # a method is a new object whenever it is looked up
    try:
        if held not in _ASKED:
            _ASKED[held] = _parameters(function)
        return name in _ASKED[held]
    except TypeError:  # an object that cannot be remembered
        return name in _parameters(function)


def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(function).parameters)
    except (ValueError, TypeError):  # compiled code without a signature
        return frozenset()


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
        """The batch at depth 0; told how many steps it will take, a walk may record them."""
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
