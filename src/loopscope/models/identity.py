"""What identifies a model in memory: the hash of its state dict, its classes with their source, its configuration.

Plain attributes and what functions close over are not identified: whoever changes one names another output folder.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from loopscope.errors import LoopscopeError

WINDOW_BYTES = 32 * 1024 * 1024
_NOT_SETTINGS = ("_name_or_path", "transformers_version")
# Their versions are in a run's manifest, with the hash of loopscope's own code.
_KNOWN_CODE = (sys.stdlib_module_names | {"loopscope", "torch", "numpy"}) - {"__main__"}


def model_identity(model: object) -> dict[str, str]:
    """What a manifest says of a model in memory: hashes of its tensors, of its code, of its configuration."""
    kind, config = type(model), getattr(model, "config", None)
    sources = [[name, _source(code)] for name, code in sorted(_code(model).items())]
    found = {"tensors": weights_sha256(model), f"class {kind.__module__}.{kind.__qualname__}": _sha256(sources)}
    if config is not None:
        found["config"] = _sha256(_settings(config))
    return found


def _settings(config: Any) -> object:
    if isinstance(config, dict):
        return {str(name): _settings(value) for name, value in config.items()}
    if not hasattr(config, "to_dict"):
        return repr(config)
    return {name: value for name, value in config.to_dict().items() if name not in _NOT_SETTINGS}


def _sha256(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=repr).encode()).hexdigest()


def weights_sha256(model: object) -> str:
    """SHA-256 over name, dtype, shape and bytes of every tensor of the state dict; shared memory counts once.

    Of an object that is no module, the tensors and modules among its attributes are taken.

    Raises:
        LoopscopeError: for a tensor without readable bytes, such as one on the meta device.
    """
    digest, seen = hashlib.sha256(), set()
    for name, tensor in _tensors(model):
        try:
            if tensor.is_meta:
                raise RuntimeError("it is on the meta device")
            strided = tensor.layout == torch.strided
            place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype) if strided else None
            if place not in seen or not tensor.numel():
                digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
                flat = (tensor.detach() if strided else tensor.detach().to_dense()).resolve_conj().resolve_neg()
                for window in torch.split(flat.reshape(-1), max(WINDOW_BYTES // flat.element_size(), 1)):
                    digest.update(window.cpu().view(torch.uint8).numpy().data)
            seen |= set() if place is None else {place}
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
    found: dict[str, Any] = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in kinds if not _is_known(kind)}
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
    """The text; where there is none, of code typed at a prompt or compiled, its bytecode."""
    return _read_source(code) if is_users_code(code) else _installed_source(code)


def _read_source(code: type | FunctionType) -> Any:
    try:
        return inspect.getsource(code)
    except (OSError, TypeError, IndexError):
        if isinstance(code, FunctionType):
            return _bytecode(code.__code__)
        return {name: _read_source(held) for name, held in vars(code).items() if isinstance(held, FunctionType)}


_installed_source = functools.lru_cache(maxsize=4096)(_read_source)


def _bytecode(held: Any) -> Any:
    """In an order that does not change from process to process."""
    if isinstance(held, CodeType):
        return [held.co_code.hex(), list(held.co_names), list(held.co_varnames), list(map(_bytecode, held.co_consts))]
    return sorted(map(repr, held)) if isinstance(held, frozenset) else repr(held)
