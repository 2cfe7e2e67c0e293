"""What identifies a model that no checkpoint file stands for: the tensors it holds and the code of its classes.

Tensors are found where a model can hold them: parameters and buffers, then whatever its attributes, containers,
methods and the variables its functions close over lead to. Not identified, and so up to whoever names the model:
numbers and strings kept as attributes, tensors inside objects of compiled code, and functions outside its classes.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from loopscope.errors import LoopscopeError
from loopscope.models.base import LoopedModule
from loopscope.models.layers.linear import Fusing

WINDOW_BYTES = 32 * 1024 * 1024


# Their versions are in a run's manifest, with the hash of loopscope's own code.
_KNOWN_CODE = sys.stdlib_module_names | {"loopscope", "torch", "numpy"}


def model_identity(model: object) -> dict[str, str]:
    """What a manifest says of the weights of a model in memory: the hash of its tensors, and of its code by class."""
    kind = type(model)
    return {
        "tensors": weights_sha256(model),
        f"class {kind.__module__}.{kind.__qualname__}": _code_sha256(model),
    }


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


def _tensors(model: object) -> Iterator[tuple[str, Tensor | np.ndarray[Any, Any]]]:
    """Every tensor once, under the first name that leads to it; the same order for the same model."""
    seen: dict[int, object] = {}  # held, so that an id is not given to another object meanwhile
    waiting: list[tuple[str, object]] = [("", model)]
    while waiting:
        name, value = waiting.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, Tensor) or (isinstance(value, np.ndarray) and value.dtype != object):
            yield name, value
        else:
            waiting.extend(reversed([(f"{name}.{key}" if name else key, held) for key, held in _contents(value)]))


def _contents(value: object) -> Iterable[tuple[str, object]]:
    """What an object holds, by name."""
    if value is None or isinstance(value, str | bytes | int | float | complex | type | ModuleType):
        return ()
    if isinstance(value, nn.Module):
        return _module_contents(value)
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
        return [*closed, ("defaults", value.__defaults__), ("kwdefaults", value.__kwdefaults__)]
    if isinstance(value, CellType):
        try:
            return [("value", value.cell_contents)]
        except ValueError:  # a variable that was never set
            return ()
    return _attributes(value)


def _module_contents(module: nn.Module) -> list[tuple[str, object]]:
    derived = {"_casts"} if isinstance(module, LoopedModule) else {"joined"} if isinstance(module, Fusing) else set()
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
    return sorted(((str(name), inner) for name, inner in held.items()), key=lambda item: item[0])


def _code_sha256(model: object) -> str:
    """The source of the model's class, of its modules' and of their bases, without torch's and loopscope's own."""
    objects = [model, *(model.modules() if isinstance(model, nn.Module) else ())]
    kinds = {kind for held in objects for kind in type(held).__mro__}
    own = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in kinds if not _is_known(kind)}
    digest = hashlib.sha256()
    for name in sorted(own):
        digest.update(json.dumps([name, _source(own[name])]).encode())
    return digest.hexdigest()


def _is_known(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in _KNOWN_CODE


def _source(kind: type) -> str | None:
    """None where there is no text: typed at a prompt, or compiled."""
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return None
