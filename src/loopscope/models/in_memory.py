"""Models in memory: an object, or a function that makes one, instead of a specification; and what identifies it.

An object stays its owner's: it is moved where the caller asks, measured in evaluation mode with frozen weights, and
left as it was found, with its own weights in their own precision. It is identified by the hash of its state dict, its
classes with their source, its configuration, and the numbers and texts among its attributes and in the closures of the
functions of `wrap`. What lists, dictionaries and global variables hold is not identified.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import operator
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from loopscope.errors import LoopscopeError, setting, shown
from loopscope.models.protocol import LoopedModel, LoopedModule
from loopscope.models.registry import FILE_MODULE, OBJECT, built, names_code, require_model

ModelSpec: TypeAlias = str | os.PathLike[str] | LoopedModel | Callable[..., LoopedModel]
"""What names a model, is one, or makes one."""
_NOT_SETTINGS = ("_name_or_path", "transformers_version")
# Their versions are in a run's manifest, with the hash of loopscope's own code.
_KNOWN_CODE = (sys.stdlib_module_names | {"loopscope", "torch", "numpy"}) - {"__main__"}


def is_factory(given: object) -> bool:
    """Whether something makes a model instead of being one: a function or a class, not a module."""
    return isinstance(given, type) or (callable(given) and not isinstance(given, nn.Module) and not _steps(given))


def _steps(given: object) -> bool:
    return hasattr(given, "step") and hasattr(given, "readout")


def spec_of(given: Any) -> str:
    """What a run records as the specification of a model in memory, or of a function that makes one.

    A function of a module that can be imported is found again by its name, `package.module:build`.
    """
    held = given if is_factory(given) and hasattr(given, "__qualname__") else type(given)
    module, name = held.__module__, held.__qualname__
    spec = getattr(sys.modules.get(module), "__spec__", None)
    if held is given and spec is not None and spec.name == module and not module.startswith((FILE_MODULE, "__main__")):
        with suppress(AttributeError):
            if operator.attrgetter(name)(sys.modules[module]) is held and names_code(f"{module}:{name}"):
                return f"{module}:{name}"
    return f"{OBJECT}{module}.{name}"


def taken(given: Any, args: Mapping[str, Any], device: torch.device, dtype: torch.dtype | None) -> LoopedModel:
    """The object itself, where it is wanted, or what a function makes."""
    name = spec_of(given).removeprefix(OBJECT)
    if not callable(given) and not _steps(given):
        kind = type(given).__name__
        raise LoopscopeError(
            f"{setting('model')} takes a name, a model or a function that makes one, not {shown(given)} (a {kind})"
        )
    if is_factory(given):
        return built(given, name, args, device, dtype)
    model = require_model(given, name)
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
    held = [(place, name, x, x.data) for place in places for name, x in place.items() if x is not None]
    drawn = getattr(given, "initial_state", None)
    try:
        with evaluating(given):
            yield
    finally:
        if drawn is not None:
            given.initial_state = drawn  # type: ignore[attr-defined]
        now = [place.get(name) for place, name, _, _ in held]
        before = [(value.dtype, value.device) for *_, value in held]
        if any(x is not None and (x.dtype, x.device) != was for x, was in zip(now, before, strict=True)):
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
    devices = sorted({weight.device for weight in weights if weight.is_cuda}, key=str)
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices):
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
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


def model_identity(model: object) -> dict[str, str]:
    """What a manifest says of a model in memory: hashes of its tensors, code, configuration and plain attributes."""
    kind, config = type(model), getattr(model, "config", None)
    sources = [[name, _source(code)] for name, code in sorted(_code(model).items())]
    found = {"tensors": weights_sha256(model), f"class {_home(kind)}.{kind.__qualname__}": _sha256(sources)}
    if config is not None:
        found["config"] = _sha256(_settings(config))
    if plain := _plain_values(model):
        found["attributes"] = _sha256(plain)
    return found


def _plain_values(model: object) -> dict[str, bool | int | float | str]:
    """Numbers and texts among the attributes of the user's classes, and among what functions of `wrap` close over."""
    parts = model.named_modules() if isinstance(model, nn.Module) else [("", model)]
    held = {place: vars(part) for place, part in parts if is_users_code(type(part)) and hasattr(part, "__dict__")}
    for name, function in getattr(model, "functions", {}).items():
        if isinstance(function, FunctionType):
            cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
            held[f"function {name}"] = {free: cell.cell_contents for free, cell in cells}
    return {
        f"{place}.{name}": value
        for place, values in held.items()
        for name, value in values.items()
        if isinstance(value, bool | int | float | str) and name != "training" and not name.startswith("_")
    }


def _home(code: type | FunctionType) -> str:
    """The module of a class or function; of a script, the name under which it would be imported."""
    if code.__module__ != "__main__":
        return str(code.__module__)
    script = sys.modules["__main__"]
    spec = getattr(script, "__spec__", None)
    return spec.name if spec is not None else Path(getattr(script, "__file__", "__main__")).stem


def _settings(config: Any) -> object:
    if isinstance(config, dict):
        return {str(name): _settings(value) for name, value in config.items()}
    if not hasattr(config, "to_dict"):
        return repr(config)
    return {name: value for name, value in config.to_dict().items() if name not in _NOT_SETTINGS}


def _sha256(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=repr).encode()).hexdigest()


def weights_sha256(model: object) -> str:
    """SHA-256 over name, dtype, shape and bytes of the tensors of the state dict, or among an object's attributes.

    Tensors that share memory count once.

    Raises:
        LoopscopeError: for a tensor without readable bytes, such as one on the meta device.
    """
    digest, seen = hashlib.sha256(), set()
    for name, tensor in _tensors(model):
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if place in seen and tensor.numel():
            continue
        seen.add(place)
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        try:
            flat = tensor.detach().resolve_conj().reshape(-1).cpu()
            digest.update(flat.view(torch.uint8).numpy().data)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            reason = " ".join(str(error).split())
            raise LoopscopeError(
                f"the model cannot be identified: the bytes of its tensor {name!r} cannot be read ({reason}); "
                f"give it ordinary tensors on a real device"
            ) from error
    return digest.hexdigest()


def _tensors(model: object) -> Iterator[tuple[str, Tensor]]:
    if isinstance(model, nn.Module):
        yield from ((name, held) for name, held in model.state_dict().items() if isinstance(held, Tensor))
        # The tensors that the functions of `wrap` use, which are parameters of no module.
        yield from ((f"held.{place}", held) for place, held in enumerate(getattr(model, "held_tensors", ())))
        return
    for name, held in sorted(getattr(model, "__dict__", {}).items()):
        if isinstance(held, Tensor):
            yield name, held
        elif isinstance(held, nn.Module):
            yield from ((f"{name}.{key}", tensor) for key, tensor in _tensors(held))


def _code(model: object) -> dict[str, Any]:
    """The classes of a model and of its parts, with their bases, and the functions of `wrap`."""
    objects = [model, *(model.modules() if isinstance(model, nn.Module) else ())]
    kinds = {kind for held in objects for kind in type(held).__mro__}
    found: dict[str, Any] = {f"{_home(kind)}.{kind.__qualname__}": kind for kind in kinds if not _is_known(kind)}
    for name, function in getattr(model, "functions", {}).items():
        while isinstance(function, functools.partial):
            function = function.func
        bare = getattr(function, "__func__", function)
        if isinstance(bare, FunctionType) and not _is_known(bare):
            found[f"function {name}"] = bare
    return found


def own_modules(model: object) -> list[ModuleType]:
    """The modules of the user's own that the code of a model, or of a function or class that makes one, is in."""
    held = [model] if isinstance(model, FunctionType) else model.__mro__ if isinstance(model, type) else ()
    names = {code.__module__ for code in (*held, *_code(model).values()) if is_users_code(code)} - {"__main__", None}
    return [sys.modules[name] for name in sorted(names) if name in sys.modules]


def _is_known(code: type | Callable[..., Any]) -> bool:
    return (code.__module__ or "").partition(".")[0] in _KNOWN_CODE


def is_users_code(code: type | Callable[..., Any]) -> bool:
    """Whether it is the user's, and not that of an installed package."""
    file = getattr(sys.modules.get(code.__module__ or ""), "__file__", None) or ""
    return not _is_known(code) and "site-packages" not in Path(file).parts


def _source(code: type | FunctionType) -> Any:
    """The text; of code without one, typed at a prompt, the bytecode of its functions."""
    try:
        return inspect.getsource(code)
    except (OSError, TypeError, IndexError):
        functions = [code] if isinstance(code, FunctionType) else [*filter(inspect.isfunction, vars(code).values())]
        return [[held.__qualname__, held.__code__.co_code.hex(), repr(held.__code__.co_names)] for held in functions]
