"""`wrap`: a looped model of three functions, without a class.

Each function is given what its parameters are called; what it does not ask for is done here:

    embed(ids) or embed(batch)          ids [B, S] → the state [B, S, D], or a `Context`
    step(state)                         may ask for injection (what `embed` gave), depth, context, carry
    readout(state)                      may ask for positions, dtype, context

A readout without `positions` is run on all positions, and those asked for are taken. One without `dtype` is run in a
mode in which every tensor that meets the state is cast to its dtype, weights once for all calls.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from loopscope.errors import LoopscopeError, text, user_code, whole
from loopscope.models.batch import Batch, select
from loopscope.models.checkpoint import MOST_LOOPS
from loopscope.models.in_memory import evaluating, is_users_code
from loopscope.models.protocol import AffineHead, Context, LoopedModule
from loopscope.models.walk import Walk, asks

TRIAL = ((0, 1, 2), (1, 0))
"""Token ids of the batch that a wrapped model is tried with; every vocabulary has them."""


def wrap(
    *,
    embed: Callable[..., Any],
    step: Callable[..., Any],
    readout: Callable[..., Any] | None = None,
    head: nn.Linear | AffineHead | Tensor | None = None,
    trained_depth: int | None = None,
    name: str = "wrapped",
    boundary: str = LoopedModule.boundary,
    max_positions: int | None = None,
    tokenizer: Any = None,
) -> LoopedModule:
    """A looped model of three functions; sizes are found by trying them on a small batch.

    Args:
        embed: from token ids [B, S] to the initial state [B, S, D]; a parameter called `batch` gets the `Batch`
            instead, and a `Context` may be returned.
        step: from a state to the next one; gets `injection` (what `embed` gave, or the injection of its `Context`),
            `depth` (the steps done before), `context` or `carry` by the names of its parameters.
        readout: from a state to logits; gets `positions`, `dtype` or `context` by the names of its parameters. Left
            out where there is a `head`.
        head: the affine head, where logits are nothing but an affine map of the state.
        trained_depth: the number of loops that the model was trained for, if known.
        name: what tables call it.
        boundary: one phrase that says where in the model the state is taken.
        max_positions: the longest sequence, if there is a limit.
        tokenizer: its tokenizer, for tasks in text.

    >>> words, turn = torch.nn.Embedding(16, 8), torch.nn.Linear(8, 8)
    >>> model = wrap(
    ...     embed=words, step=lambda h: h + torch.tanh(turn(h)), readout=lambda h: h @ words.weight.T, trained_depth=4
    ... )
    >>> model.hidden_size, model.vocabulary_size
    (8, 16)
    """
    if readout is None and head is None:
        raise LoopscopeError("wrap needs readout=, from a state to logits, or head=, the affine map that it is")
    for what, given in (("embed", embed), ("step", step), ("readout", readout)):
        if given is not None and not callable(given):
            raise LoopscopeError(f"wrap: {what}= is a {type(given).__name__}; give a function or a module")
    for what, number in (("trained_depth", trained_depth), ("max_positions", max_positions)):
        if number is not None:
            whole(what, number, 1, MOST_LOOPS)
    head = AffineHead(head) if isinstance(head, Tensor) else head
    if head is not None and not isinstance(head, nn.Linear | AffineHead):
        raise LoopscopeError("wrap: head= takes an nn.Linear, an AffineHead or a weight [vocabulary, width]")
    model = WrappedModel(embed, step, readout, head)
    model.name, model.boundary, model.max_positions = text("name", name), text("boundary", boundary), max_positions
    model.trained_depth, model.tokenizer = trained_depth, tokenizer  # type: ignore[assignment]
    model.try_out()
    return model


class WrappedModel(LoopedModule):
    """Three functions as a looped model; `wrap` makes it."""

    family = "wrapped"

    def __init__(
        self,
        embed: Callable[..., Any],
        step: Callable[..., Any],
        readout: Callable[..., Any] | None,
        head: nn.Linear | AffineHead | None,
    ) -> None:
        super().__init__()
        self.functions: dict[str, Any] = {"embed": embed, "step": step, "readout": readout or self._affine}
        self._head = head
        # Registered, so that moving, freezing and evaluation mode reach the modules that the functions use.
        held = _held_objects([embed, step, readout, head])
        self.used = nn.ModuleList(value for value in held if isinstance(value, nn.Module))
        self.held_tensors = [value for value in held if isinstance(value, Tensor)]
        self._place = (torch.device("cpu"), torch.float32)
        self._kept: dict[tuple[int, torch.dtype], tuple[Tensor, int, Tensor]] = {}

    def try_out(self) -> None:
        """Run each function once and note the sizes."""
        for tensor in (*self.held_tensors, *self.parameters()):
            if tensor.is_floating_point():
                self._place = tensor.device, tensor.dtype
        batch = Batch.from_rows(TRIAL, source_rows=[0, 1])
        # The functions may be parts of a model in training, which must not notice.
        with evaluating(self), torch.autocast(self.device.type, enabled=False), torch.no_grad():
            with user_code("wrap: embed= for two rows of token ids", always=True):
                state = self.embed(batch).state
            _require_like("embed", state, batch.input_ids, "a state for every token, [rows, positions, width]")
            self._place, self.hidden_size = (state.device, state.dtype), int(state.shape[2])
            walk = Walk.of(self, batch)
            with user_code(f"wrap: step= for a state {list(state.shape)}", always=True):
                after = walk.advance()
            if after.dtype != state.dtype:
                raise LoopscopeError(
                    f"wrap: step= gave {after.dtype} for a state of {state.dtype}; it must keep the dtype"
                )
            with user_code(f"wrap: the readout of a state {list(state.shape)}", always=True):
                logits = walk.read()
        _require_like("readout", logits, state, "logits for every position, [rows, positions, vocabulary]")
        self.vocabulary_size = int(logits.shape[2])

    @property
    def device(self) -> torch.device:
        """Where the functions work."""
        return self._works_in[0]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the state."""
        return self._works_in[1]

    @property
    def _works_in(self) -> tuple[torch.device, torch.dtype]:
        weight = next((weight for weight in self.parameters() if weight.is_floating_point()), None)
        return self._place if weight is None else (weight.device, weight.dtype)

    @property
    def head(self) -> AffineHead | None:
        """The affine head, where one was given."""
        return AffineHead(self._head.weight, self._head.bias) if isinstance(self._head, nn.Module) else self._head

    def embed(self, batch: Batch) -> Context:
        """The state that the function gives, or its whole context."""
        function = self.functions["embed"]
        batch = batch.to(self.device)
        made = function(batch) if asks(function, "batch") else function(batch.input_ids)
        if isinstance(made, Tensor):
            return Context(made, batch, injection=made)
        if not isinstance(made, Context):
            raise LoopscopeError(f"wrap: embed= must return a state or a Context, not a {type(made).__name__}")
        return made if made.injection is not None else dataclasses.replace(made, injection=made.state)

    def step(self, state: Tensor, context: Context, *, depth: int, carry: Any) -> Any:
        """One step; what the function carries along goes with the state."""
        function = self.functions["step"]
        known = {"context": context, "injection": context.injection, "depth": depth, "carry": carry}
        made = function(state, **{name: value for name, value in known.items() if asks(function, name)})
        return made if asks(function, "carry") else (made, None)

    def readout(
        self, state: Tensor, positions: Tensor | None = None, dtype: torch.dtype | None = None, *, context: Context
    ) -> Tensor:
        """Logits; positions and dtype are seen to where the function does not."""
        function = self.functions["readout"]
        known: dict[str, Any] = {"positions": positions, "dtype": dtype, "context": context}
        asked = {name: value for name, value in known.items() if asks(function, name)}
        casting = nullcontext() if dtype is None or "dtype" in asked else _Casting(dtype, self._kept)
        with casting:
            logits: Tensor = function(state if dtype is None else state.to(dtype), **asked)
        return logits if "positions" in asked or positions is None else select(logits, positions)

    def _affine(self, state: Tensor, positions: Tensor | None = None) -> Tensor:
        head = self.head
        assert head is not None
        return functional.linear(select(state, positions), *head)

    def forget_casts(self) -> None:
        """Drops the weights that were kept in another dtype."""
        super().forget_casts()
        self._kept.clear()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> WrappedModel:
        self._kept.clear()
        super()._apply(fn, recurse)
        return self


def _require_like(what: str, made: object, given: Tensor, wanted: str) -> None:
    """Refuses what is not floating-point numbers for every position, where the model works."""
    found = type(made).__name__
    if isinstance(made, Tensor):
        found = f"{made.dtype} {list(made.shape)} on {made.device}"
        fits = made.is_floating_point() and made.dim() == 3 and made.shape[:2] == given.shape[:2]
        if fits and (made.device == given.device or not given.is_floating_point()):
            return
    raise LoopscopeError(
        f"wrap: {what}= gave {found} for {list(given.shape)} on {given.device}; it must give {wanted}, floating-point "
        "numbers on the state's device"
    )


class _Casting(TorchFunctionMode):
    """Every plain floating-point tensor that an operation is given is in one dtype; frozen weights are cast once.

    `kept` holds for a weight and a dtype the weight, its version and the cast.
    """

    def __init__(self, dtype: torch.dtype, kept: dict[tuple[int, torch.dtype], tuple[Tensor, int, Tensor]]) -> None:
        super().__init__()
        self._dtype, self._kept = dtype, kept

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _UNCHANGED:
            return func(*args, **(kwargs or {}))
        given = {name: self._given(value) for name, value in (kwargs or {}).items()}
        return func(*(self._given(value) for value in args), **given)

    def _given(self, value: Any) -> Any:
        if isinstance(value, list | tuple) and type(value) in (list, tuple):
            return type(value)(map(self._given, value))
        if type(value) not in (Tensor, nn.Parameter) or not value.is_floating_point() or value.dtype == self._dtype:
            return value
        with torch._C.DisableTorchFunction():
            if value.requires_grad or not isinstance(value, nn.Parameter):
                return value.to(self._dtype)
            version = -1 if value.is_inference() else value._version
            weight, known, cast = self._kept.get((id(value), self._dtype), (None, 0, value))
            if weight is not value or known != version:
                # Inside a function transform every result belongs to the transform; what is kept must outlive it.
                with torch._C._DisableFuncTorch(), torch.inference_mode(False):
                    cast = value.detach().to(self._dtype)
                self._kept[id(value), self._dtype] = value, version, cast
            return cast


_UNCHANGED = {Tensor.to, Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16, Tensor.type, Tensor.dtype.__get__}  # type: ignore[attr-defined]
"""What asks about or for a dtype is left to the readout's own code."""


def _held_objects(functions: Iterable[object]) -> list[nn.Module | Tensor]:
    """The modules and tensors that functions work with: what they close over, their defaults, globals they name."""
    found: list[nn.Module | Tensor] = []
    seen: dict[int, object] = {}  # held, so that an id is not given to another object meanwhile
    waiting = list(functions)
    while waiting:
        value = waiting.pop(0)
        if id(value) in seen:
            continue
        seen[id(value)] = value
        match value:
            case nn.Module() | Tensor():
                found.append(value)
            case Mapping():
                waiting += value.values()
            case list() | tuple():
                waiting += value
            case functools.partial():
                waiting += [value.func, value.args, value.keywords]
            case MethodType():
                waiting += [value.__self__, value.__func__]
            case FunctionType() if is_users_code(value):
                used = inspect.getclosurevars(value)
                waiting += [used.nonlocals, used.globals, value.__defaults__, value.__kwdefaults__]
            case type() | ModuleType() | FunctionType():
                continue
            case _:
                waiting += getattr(value, "__dict__", {}).values()
    return found
