"""What identifies a model that no checkpoint file stands for: the tensors and values it holds, and its code.

They are found where a model can hold them: parameters and buffers, then whatever its attributes, containers and methods
lead to, the variables that its functions close over, and the global names that its own functions use. Not identified,
and so up to whoever names the model: attributes that begin with an underscore and are not tensors, what is inside
objects of compiled code, and the functions of installed packages that its classes call.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from loopscope.errors import LoopscopeError
from loopscope.models.base import LoopedModule
from loopscope.models.layers.linear import Fusing

WINDOW_BYTES = 32 * 1024 * 1024
MOST_ENTRIES = 1000
"""The largest global list or mapping that is part of a model because one of its functions names it."""


# Their versions are in a run's manifest, with the hash of loopscope's own code.
_KNOWN_CODE = (sys.stdlib_module_names | {"loopscope", "torch", "numpy"}) - {"__main__"}
_NOT_VALUES = ("training", "prepared", "card", "is_random", "name_or_path")
"""Attributes that say how a model is used or where it was, not what it computes."""
_ELSEWHERE = ("card", "tokenizer")
"""Attributes with a place of their own in a manifest."""


class _Ran(NamedTuple):
    """A model's identity before it was run, and after."""

    before: dict[str, str]
    after: dict[str, str]


_RAN: WeakKeyDictionary[Any, _Ran] = WeakKeyDictionary()
_LAST: WeakKeyDictionary[Any, dict[str, str]] = WeakKeyDictionary()


def model_identity(model: object) -> dict[str, str]:
    """What a manifest says of the weights of a model in memory: hashes of its tensors, of its code, of each value."""
    now = _identity(model)
    if not _can_be_noted(model):
        return now
    ran = _RAN.get(model)
    _LAST[model] = ran.before if ran is not None and ran.after == now else now
    return _LAST[model]


@contextmanager
def while_running(model: object) -> Iterator[None]:
    """What a model changes of itself while it runs here (a table of positions, a counter) does not change who it is."""
    try:
        yield
    finally:
        if _can_be_noted(model) and model in _LAST:
            _RAN[model] = _Ran(_LAST[model], _identity(model))


def _can_be_noted(model: object) -> bool:
    return getattr(type(model), "__hash__", None) is not None and hasattr(model, "__weakref__")


def _identity(model: object) -> dict[str, str]:
    kind = type(model)
    values: dict[str, list[Any]] = {}
    for name, value in _walk(model, _is_value):
        values.setdefault(name.partition(".")[0], []).append([name, type(value).__name__, repr(value)])
    return {
        "tensors": weights_sha256(model),
        f"class {kind.__module__}.{kind.__qualname__}": _code_sha256(model),
        **{f"value {name}": hashlib.sha256(json.dumps(held).encode()).hexdigest() for name, held in values.items()},
    }


def held_objects(functions: Iterable[object]) -> list[nn.Module | Tensor]:
    """The modules and tensors that functions work with; a module's own parts are not named again."""
    return [value for _, value in _walk(list(functions), _is_held, into=False)]


def _is_held(value: object) -> bool:
    return isinstance(value, nn.Module | Tensor)


def weights_sha256(model: object) -> str:
    """SHA-256 over name, dtype, shape and bytes of every tensor that an object holds, wherever they lie.

    Tied tensors count once. What a `LoopedModule` works out from its weights (joined and cast copies) does not count,
    so that using the model leaves its hash as it is.

    Raises:
        LoopscopeError: for a tensor without readable bytes, such as one on the meta device.
    """
    digest = hashlib.sha256()
    for name, tensor in _tensors(model):
        try:
            _add(digest, name, tensor)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            reason = " ".join(str(error).split())
            raise LoopscopeError(
                f"the model cannot be identified: the bytes of its tensor {name!r} cannot be read ({reason}); "
                f"give it ordinary tensors on a real device"
            ) from error
    return digest.hexdigest()


def _add(digest: hashlib._Hash, name: str, tensor: Tensor | np.ndarray[Any, Any]) -> None:
    digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
    if isinstance(tensor, np.ndarray):
        digest.update(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)
        return
    if tensor.is_meta:
        raise RuntimeError("it is on the meta device")
    flat = (tensor.detach() if tensor.layout == torch.strided else tensor.detach().to_dense()).resolve_conj()
    flat = flat.resolve_neg().reshape(-1)
    step = max(WINDOW_BYTES // max(flat.element_size(), 1), 1)
    for first in range(0, flat.shape[0], step):
        digest.update(flat[first : first + step].cpu().view(torch.uint8).numpy().data)


def _tensors(model: object) -> Iterator[tuple[str, Any]]:
    return _walk(model, _is_tensor)


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, np.ndarray) and value.dtype != object)


def _is_value(value: object) -> bool:
    return isinstance(value, bool | int | float | complex | str | bytes | torch.dtype)


def _walk(root: object, wanted: Callable[[object], bool], *, into: bool = True) -> Iterator[tuple[str, Any]]:
    """What is wanted of everything that an object holds, under the name that leads to it; tensors and objects once.

    The same order for the same model. `into` says whether to look into what is wanted, too.
    """
    seen: dict[int, object] = {}  # held, so that an id is not given to another object meanwhile
    waiting: list[tuple[str, object]] = [("", root)]
    while waiting:
        name, value = waiting.pop()
        if _is_value(value):
            hidden = any(part.startswith("_") or part in _NOT_VALUES for part in name.split("."))
            if wanted(value) and not hidden:
                yield name, value
            continue
        if id(value) in seen:
            continue
        seen[id(value)] = value
        found = wanted(value)
        if found:
            yield name, value
        if not _is_tensor(value) and (into or not found):
            held = _contents(value)
            waiting.extend(reversed([(f"{name}.{key}" if name else key, inner) for key, inner in held]))


def _contents(value: object) -> Iterable[tuple[str, object]]:
    """What an object holds, by name."""
    if value is None or isinstance(value, type | ModuleType):
        return ()
    if isinstance(value, nn.Module):
        return [*_module_contents(value), *_used_by_class(value)]
    if isinstance(value, Mapping):
        return [*((str(key), held) for key, held in value.items()), *_attributes(value)]
    if isinstance(value, list | tuple):
        return [*((str(index), held) for index, held in enumerate(value)), *_attributes(value)]
    if isinstance(value, np.ndarray):
        return [(str(index), held) for index, held in enumerate(value.reshape(-1).tolist())]
    if isinstance(value, functools.partial):
        return [("func", value.func), ("args", value.args), ("keywords", value.keywords)]
    if isinstance(value, MethodType):
        return [("self", value.__self__), ("func", value.__func__)]
    if isinstance(value, FunctionType):
        closed = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        given = [("defaults", value.__defaults__), ("kwdefaults", value.__kwdefaults__)]
        return [*closed, *given, *_used_globals(value)]
    if isinstance(value, CellType):
        try:
            return [("value", value.cell_contents)]
        except ValueError:  # a variable that was never set
            return ()
    return [*_attributes(value), *_used_by_class(value)]


def _used_by_class(value: object) -> list[tuple[str, object]]:
    """The functions of an object's own classes, for the global names that they use."""
    kinds = [kind for kind in type(value).__mro__ if _is_own(kind)]
    return [
        (f"{kind.__name__}.{name}", getattr(function, "fget", function))
        for kind in kinds
        for name, function in vars(kind).items()
        if isinstance(function, FunctionType | property)
    ]


def _used_globals(function: FunctionType) -> list[tuple[str, object]]:
    """The global variables that a function of the user's own names."""
    if not _is_own(function):
        return []
    names: list[str] = []
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        names += code.co_names
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    space = function.__globals__
    return [(name, space[name]) for name in dict.fromkeys(names) if name in space and _counts(space[name])]


def _counts(value: object) -> bool:
    if isinstance(value, list | tuple | dict):
        return len(value) <= MOST_ENTRIES
    return _is_value(value) or isinstance(value, Tensor | np.ndarray | nn.Module | FunctionType | functools.partial)


def _module_contents(module: nn.Module) -> list[tuple[str, object]]:
    derived = {"_casts", "_kept"} if isinstance(module, LoopedModule) else set()
    derived |= {"joined", "kept"} if isinstance(module, Fusing) else set()
    registered = {"_parameters", "_buffers", "_modules"}
    return [
        *module.named_parameters(recurse=False),
        *module.named_buffers(recurse=False),
        *module.named_children(),
        *((name, held) for name, held in _attributes(module) if name not in registered | derived),
    ]


def _attributes(value: object) -> list[tuple[str, object]]:
    held = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__") and hasattr(value, name):
                held[name] = getattr(value, name)
    kept = [(str(name), inner) for name, inner in held.items() if name not in _ELSEWHERE]
    return sorted(kept, key=lambda item: item[0])


def _code(model: object) -> dict[str, Any]:
    """The model's classes and their bases, and its functions, by name, without torch's and loopscope's own."""
    objects = [model, *(model.modules() if isinstance(model, nn.Module) else ())]
    own: dict[str, Any] = {
        f"{kind.__module__}.{kind.__qualname__}": kind
        for kind in {kind for held in objects for kind in type(held).__mro__}
        if not _is_known(kind)
    }
    methods = {id(function) for kind in own.values() for function in vars(kind).values()}
    for name, function in _walk(model, lambda value: isinstance(value, FunctionType)):
        if not _is_known(function) and id(function) not in methods:
            own[f"function {name}"] = function
    return own


def own_modules(model: object) -> list[ModuleType]:
    """The modules of the user's own that the model's code is in."""
    names = {code.__module__ for code in _code(model).values() if _is_own(code)} - {"__main__", None}
    return [sys.modules[name] for name in sorted(names) if name in sys.modules]


def _code_sha256(model: object) -> str:
    own, digest = _code(model), hashlib.sha256()
    for name in sorted(own):
        source = _source(own[name]) if _is_own(own[name]) else _installed_source(own[name])
        digest.update(json.dumps([name, source]).encode())
    return digest.hexdigest()


@functools.lru_cache(maxsize=4096)
def _installed_source(code: type | FunctionType) -> Any:
    """Remembered: the files of installed packages do not change under a process, and finding a class takes long."""
    return _source(code)


def _is_known(code: type | FunctionType) -> bool:
    return (code.__module__ or "").partition(".")[0] in _KNOWN_CODE


def _is_own(code: type | FunctionType) -> bool:
    """Whether it is the user's, and not that of an installed package."""
    file = getattr(sys.modules.get(code.__module__ or ""), "__file__", None) or ""
    return not _is_known(code) and "site-packages" not in Path(file).parts


def _source(code: type | FunctionType) -> Any:
    """The text; where there is none, of code typed at a prompt or compiled, what it was translated to."""
    try:
        return inspect.getsource(code)
    except (OSError, TypeError, IndexError):
        pass
    if isinstance(code, FunctionType):
        return _translated(code.__code__)
    return {name: _source(held) for name, held in vars(code).items() if isinstance(held, FunctionType)}


def _translated(code: CodeType) -> list[Any]:
    constants = [_constant(held) for held in code.co_consts]
    return [code.co_code.hex(), list(code.co_names), list(code.co_varnames), constants]


def _constant(held: object) -> Any:
    """A constant, in an order that does not change from process to process."""
    if isinstance(held, CodeType):
        return _translated(held)
    return sorted(map(repr, held)) if isinstance(held, frozenset) else repr(held)
