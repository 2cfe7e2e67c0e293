"""Models of the user's own that a specification names: entry points of installed packages, code in files and modules.

`mine.py:build` and `package.module:build` name a callable that returns a `LoopedModel`; an entry point in the group
`loopscope.models` gives such a callable a name (a tokenizer for the model may be named likewise in
`loopscope.tokenizers`). It gets what `model_args` says, and `device` and `dtype` if it takes them; if not, what it
returns is moved there when it is an `nn.Module`. Modules are frozen and put in evaluation mode. Code runs only when the
user names it, never because a checkpoint does.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import operator
import re
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopscope.errors import LoopscopeError, setting, shown, user_code

if TYPE_CHECKING:
    import torch

    from loopscope.models.protocol import LoopedModel


OBJECT = "object:"
"""What the specification of a model in memory begins with."""
FILE_MODULE = "loopscope_code_"
"""What the name of a file's module begins with: a name that no other module has, so that mine.py may be torch.py."""

REQUIRED = (
    "family", "name", "hidden_size", "vocabulary_size", "trained_depth", "boundary", "head", "device", "dtype",
    "embed", "step", "readout", "states",
)  # fmt: skip
_WORD = r"[^\W\d]\w*"
_CODE = re.compile(rf"(.+\.py|{_WORD}(?:\.{_WORD})*):({_WORD}(?:\.{_WORD})*)")


def user_models() -> dict[str, metadata.EntryPoint]:
    """The models that installed packages bring, by name."""
    return _entry_points("loopscope.models")


def user_tokenizers() -> dict[str, metadata.EntryPoint]:
    """The tokenizers that installed packages bring, by the model's name."""
    return _entry_points("loopscope.tokenizers")


def names_code(spec: str) -> bool:
    """Whether a specification has the form of a callable in a file or in a module.

    >>> [names_code(spec) for spec in ("mine.py:build", "a.b:C.make", "org/model@main", "toy-ouro")]
    [True, True, False, False]
    """
    return _CODE.fullmatch(spec) is not None


def load_code(spec: str) -> Callable[..., Any]:
    """The callable of `mine.py:build` or `package.module:build`; a file is run anew each time."""
    found = _CODE.fullmatch(spec)
    assert found is not None, "the caller asked names_code"
    place, name = found.groups()
    value: Any = _file_module(Path(place).expanduser()) if place.endswith(".py") else _named_module(place, spec)
    try:
        value = operator.attrgetter(name)(value)
    except AttributeError:
        raise LoopscopeError(f"{place} has no {name}: the part after the colon names what builds the model") from None
    if not callable(value):
        raise LoopscopeError(f"{name} in {place} is a {type(value).__name__}: name a function that returns the model")
    return value  # type: ignore[no-any-return]


def _file_module(path: Path) -> Any:
    if not path.is_file():
        raise LoopscopeError(f"there is no file {path}: a model in code is FILE.py:FUNCTION")
    path = path.resolve()
    name = FILE_MODULE + path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    _search_in(path.parent)
    with user_code(f"running {path}", always=True):
        try:
            spec.loader.exec_module(module)
        except ModuleNotFoundError as error:
            raise LoopscopeError(f"{path}: {error}; install it, or put it next to the file") from error
        except SyntaxError as error:
            raise LoopscopeError(f"{path}, line {error.lineno}: {error.msg}") from error
    return module


def _named_module(name: str, spec: str) -> Any:
    _search_in(Path.cwd())
    with user_code(f"importing {name}", always=True):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            advice = "start where it is found, or give a file as ./mine.py:build"
            raise LoopscopeError(f"{spec} cannot be imported: {error}; {advice}") from error


def _search_in(folder: Path) -> None:
    """As `python FILE` does: what lies next to the file can be imported."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def model_arguments(given: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """What a factory is called with: a mapping, or text as on the command line, whose values are JSON or else text.

    >>> model_arguments("ckpt=step900,cores=2,tied=true,scale=0.5")
    {'ckpt': 'step900', 'cores': 2, 'tied': True, 'scale': 0.5}
    """
    if isinstance(given, str):
        found: dict[str, Any] = {}
        for entry in given.split(",") if given else ():
            name, equals, value = (part.strip() for part in entry.partition("="))
            if not equals or not name.isidentifier() or name in found:
                raise LoopscopeError(f"{setting('model_args', given)}: write NAME=VALUE, each once, between commas")
            found[name] = _value(value)
        return found
    if not isinstance(given or {}, Mapping):
        raise LoopscopeError(f"{setting('model_args')} takes names with values, not {shown(given)}")
    args = dict(given or {})
    for name, value in args.items():
        try:
            json.dumps({name: value}, allow_nan=False)
        except (TypeError, ValueError):
            raise LoopscopeError(
                f"{setting('model_args')} holds {name}, a {type(value).__name__}: give numbers, text, booleans or lists"
                " of them, which a run can record, or build the model yourself and give the object"
            ) from None
    return args


def _value(text: str) -> Any:
    try:
        return json.loads(text.lower() if text.lower() in ("true", "false") else text, parse_constant=str)
    except ValueError:
        return text


def built(
    factory: Callable[..., Any], name: str, args: Mapping[str, Any], device: torch.device, dtype: torch.dtype | None
) -> LoopedModel:
    """The model that a callable makes, on its device, frozen and in evaluation mode.

    Raises:
        LoopscopeError: it does not take `args`, or what it makes lacks a part of the `LoopedModel` protocol.
    """
    from torch import nn

    signature = inspect.signature(factory)
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    place = {"device": device, "dtype": dtype}
    known = {key: value for key, value in place.items() if open_ended or key in signature.parameters} | dict(args)
    try:
        signature.bind(**known)
    except TypeError as error:
        raise LoopscopeError(f"{name}{signature}: {error}; see {setting('model_args')}") from None
    with user_code(f"{name}({', '.join(known)})", always=True):
        model = factory(**known)
    if isinstance(model, nn.Module):
        if not place.keys() <= known.keys():
            model.to(device=device, dtype=dtype)
        model.eval().requires_grad_(False)
    return require_model(model, name)


def require_model(model: Any, name: str) -> LoopedModel:
    """Refuse what lacks a part of the `LoopedModel` protocol."""
    missing = [attribute for attribute in REQUIRED if not hasattr(model, attribute)]
    if missing:
        advice = "loopscope.wrap makes a model of three functions, loopscope.LoopedModule of a class"
        if hasattr(model, "get_output_embeddings"):
            advice = "loopscope.loop_layers(model, FIRST, LAST) loops layers of a model of transformers"
        raise LoopscopeError(f"the model {shown(name)} lacks {', '.join(missing)}: {advice}")
    return model  # type: ignore[no-any-return]


def load_entry_point(point: metadata.EntryPoint) -> Callable[..., Any]:
    """The callable an entry point names."""
    try:
        factory = point.load()
    except (ImportError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise LoopscopeError(f"the entry point {point.name} = {point.value} cannot be imported: {reason}") from error
    if not callable(factory):
        raise LoopscopeError(f"the entry point {point.name} = {point.value} is not a callable: name a function")
    return factory  # type: ignore[no-any-return]


def _entry_points(group: str) -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group=group)}
