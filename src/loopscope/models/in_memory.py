"""Models in memory: an object, or a function that makes one, instead of a specification.

An object stays its owner's: it is moved where the caller asks, measured in evaluation mode with frozen weights, and
left as it was found, with its own weights in their own precision.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from loopscope.errors import LoopscopeError, setting, shown
from loopscope.models.base import LoopedModule
from loopscope.models.initial_state import InitialState
from loopscope.models.protocol import LoopedModel
from loopscope.models.user_models import OBJECT, built, names_code, require_model

ModelSpec: TypeAlias = str | os.PathLike[str] | LoopedModel | Callable[..., LoopedModel]
"""What names a model, is one, or makes one."""


def is_factory(given: object) -> bool:
    """Whether something makes a model instead of being one: a function or a class, no module."""
    return isinstance(given, type) or (callable(given) and not isinstance(given, nn.Module) and not _steps(given))


def _steps(given: object) -> bool:
    return hasattr(given, "step") and hasattr(given, "readout")


def spec_of(given: Any) -> str:
    """What a run records as the specification of a model in memory, or of a function that makes one.

    A function of a module that can be imported is found again by its name, `package.module:build`.
    """
    held = given if is_factory(given) and hasattr(given, "__qualname__") else type(given)
    found = f"{held.__module__}:{held.__qualname__}"
    if held is given and names_code(found) and _is_importable(held):
        return found
    return f"{OBJECT}{held.__module__}.{held.__qualname__}"


def _is_importable(held: Any) -> bool:
    """Whether its module was imported by its name and holds it under its own."""
    value: Any = sys.modules.get(held.__module__)
    if held.__module__ == "__main__" or getattr(value, "__spec__", None) is None:
        return False
    if value.__spec__.name != held.__module__ or held.__module__.startswith("loopscope_code_"):
        return False
    for part in held.__qualname__.split("."):
        value = getattr(value, part, None)
    return value is held


def taken(given: Any, args: Mapping[str, Any], device: torch.device, dtype: torch.dtype | None) -> LoopedModel:
    """The object itself, where it is wanted, or what a function makes."""
    spec = spec_of(given)
    if not callable(given) and not _steps(given):
        kind = type(given).__name__
        raise LoopscopeError(
            f"{setting('model')} takes a name, a model or a function that makes one, not {shown(given)} (a {kind})"
        )
    if is_factory(given):
        return built(given, spec.removeprefix(OBJECT), args, device, dtype)
    model = require_model(given, spec.removeprefix(OBJECT))
    if args:
        raise LoopscopeError(f"{setting('model_args')} is for what makes a model: {model.name} is one already")
    if (model.device, model.dtype) != (device, dtype or model.dtype):
        if not isinstance(model, nn.Module):
            raise LoopscopeError(
                f"{model.name} is on {model.device} in {model.dtype} and is not an nn.Module that could be moved:"
                f" leave out {setting('device')} and {setting('dtype')}, or make it so"
            )
        model.to(device=device, dtype=dtype)
    return model


@contextmanager
def borrowed(given: object) -> Iterator[None]:
    """An object in evaluation mode with frozen weights; afterwards mode and weights are as they were, also if moved."""
    modules = list(given.modules()) if isinstance(given, nn.Module) else []
    places: list[dict[str, Any]] = [place for module in modules for place in (module._parameters, module._buffers)]
    entries = [(place, name, tensor) for place in places for name, tensor in place.items() if tensor is not None]
    held = [(place, name, tensor, tensor.data) for place, name, tensor in entries]
    drawn = getattr(given, "initial_state", None)
    try:
        with evaluating(given):
            yield
    finally:
        if isinstance(drawn, InitialState):
            given.initial_state = drawn  # type: ignore[attr-defined]
        if any(_is_moved(place.get(name), value) for place, name, _, value in held):
            # A cast back would keep the rounding of the cast before it.
            for place, name, tensor, value in held:
                tensor.data = value
                place[name] = tensor
            if isinstance(given, LoopedModule) and given.prepared:
                given.prepare()


@contextmanager
def evaluating(given: object) -> Iterator[None]:
    """A module in evaluation mode with frozen weights; afterwards every part of it is as it was.

    So are its buffers and the global random streams: a training goes on as if nothing had run.
    """
    modules = list(given.modules()) if isinstance(given, nn.Module) else []
    training = [module for module in modules if module.training]
    weights = [weight for module in modules for weight in module._parameters.values() if weight is not None]
    trained = [weight for weight in weights if weight.requires_grad]
    values = [(held, held.clone()) for module in modules for held in module._buffers.values() if held is not None]
    devices = {weight.device for weight in weights if weight.device.type == "cuda"}
    with _random_streams(sorted(devices, key=str)):
        try:
            for module in training:
                module.training = False
            for weight in trained:
                weight.requires_grad_(False)
            yield
        finally:
            for module in training:
                module.training = True
            for weight in trained:
                weight.requires_grad_(True)
            with torch.no_grad():
                for held, value in values:
                    if not torch.equal(held, value):
                        held.copy_(value)


@contextmanager
def _random_streams(devices: Sequence[torch.device]) -> Iterator[None]:
    """The global streams of Python, NumPy and torch are afterwards as they were, on the CPU and on the devices."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


def _is_moved(now: Tensor | None, before: Tensor) -> bool:
    return now is not None and (now.dtype, now.device) != (before.dtype, before.device)
