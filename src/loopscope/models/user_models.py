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
import re
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopscope.errors import LoopscopeError, setting, shown
from loopscope.user_code import user_code

if TYPE_CHECKING:
    import torch

    from loopscope.models.protocol import LoopedModel


MODEL_GROUP = "loopscope.models"
TOKENIZER_GROUP = "loopscope.tokenizers"
OBJECT = "object:"
"""What the specification of a model in memory begins with."""


REQUIRED = (
    "family", "name", "hidden_size", "vocabulary_size", "trained_depth", "boundary", "head", "device", "dtype",
    "embed", "step", "readout", "states",
)  # fmt: skip
_WORD = r"[^\W\d]\w*"
_CODE = re.compile(rf"(.+\.py|{_WORD}(?:\.{_WORD})*):({_WORD}(?:\.{_WORD})*)")


def user_models() -> dict[str, metadata.EntryPoint]:
    """The models that installed packages bring, by name."""
    return _entry_points(MODEL_GROUP)


def user_tokenizers() -> dict[str, metadata.EntryPoint]:
    """The tokenizers that installed packages bring, by the model's name."""
    return _entry_points(TOKENIZER_GROUP)


def names_code(spec: str) -> bool:
    """Whether a specification has the form of a callable in a file or in a module.

    >>> [names_code(spec) for spec in ("mine.py:build", "a.b:C.make", "org/model@main", "toy-ouro")]
    [True, True, False, False]
    """
    return _CODE.fullmatch(spec) is not None


def load_factory(kind: str, location: str) -> Callable[..., Any]:
    """The callable that an entry point or `mine.py:build` names.

    Raises:
        LoopscopeError: there is none, or its module cannot be imported.
    """
    return load_entry_point(user_models()[location]) if kind == "entry point" else load_code(location)


def load_code(spec: str) -> Callable[..., Any]:
    """The callable of `mine.py:build` or `package.module:build`; a file is run anew each time."""
    found = _CODE.fullmatch(spec)
    assert found is not None, "the caller asked names_code"
    place, name = found.groups()
    module = _file_module(Path(place).expanduser()) if place.endswith(".py") else _named_module(place, spec)
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            raise LoopscopeError(f"{place} has no {name}: the part after the colon names what builds the model")
        value = getattr(value, part)
    if not callable(value):
        raise LoopscopeError(f"{name} in {place} is a {type(value).__name__}: name a function that returns the model")
    return value  # type: ignore[no-any-return]


def _file_module(path: Path) -> Any:
    if not path.is_file():
        raise LoopscopeError(f"there is no file {path}: a model in code is FILE.py:FUNCTION")
    path = path.resolve()
    # A name that no other module has, so that mine.py may be called torch.py.
    name = f"loopscope_code_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _search_in(path.parent)
    with user_code(f"running {path}", always=True):
        try:
            spec.loader.exec_module(module)
        except ModuleNotFoundError as error:
            message = f"{path} cannot be imported: {error}; install it, or put it beside the file"
            raise LoopscopeError(message) from error
        except SyntaxError as error:
            raise LoopscopeError(f"{path}, line {error.lineno}: {error.msg}") from error
    return module


def _named_module(name: str, spec: str) -> Any:
    _search_in(Path.cwd())
    with user_code(f"importing {name}", always=True):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise LoopscopeError(
                f"{spec} cannot be imported: {error}; start where it is found, or give a file as ./mine.py:build"
            ) from error


def _search_in(folder: Path) -> None:
    """As `python FILE` does: what lies beside the file can be imported."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def model_arguments(given: object) -> dict[str, Any]:
    """What a factory is called with: a mapping, or text as on the command line.

    >>> model_arguments("ckpt=step900,cores=2,tied=true,scale=0.5")
    {'ckpt': 'step900', 'cores': 2, 'tied': True, 'scale': 0.5}
    """
    if given is None or given == "":
        return {}
    if isinstance(given, str):
        return _parsed_arguments(given)
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise LoopscopeError(f"{setting('model_args')} takes names with values, not {shown(given)}")
    strange = next((name for name, value in given.items() if not _is_plain(value)), None)
    if strange is not None:
        raise LoopscopeError(
            f"{setting('model_args')} holds {strange}, a {type(given[strange]).__name__}: give numbers, text, booleans "
            f"or lists of them, which a run can record, or build the model yourself and give the object"
        )
    return dict(given)


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and value - value == 0.0)


def _parsed_arguments(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for entry in text.split(","):
        name, equals, value = entry.partition("=")
        name = name.strip()
        if not equals or not name.isidentifier():
            raise LoopscopeError(
                f"{setting('model_args', text)}: {shown(entry)} is not NAME=VALUE; separate several by commas"
            )
        if name in found:
            raise LoopscopeError(f"{setting('model_args', text)} gives {name} twice: give it once")
        found[name] = parsed_value(value.strip())
    return found


def parsed_value(text: str) -> bool | int | float | str:
    """A value of the command line: true and false, numbers, else the text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if re.fullmatch(r"[+-]?\d+", text, re.ASCII):
        return int(text)
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", text, re.ASCII | re.IGNORECASE):
        return float(text)
    return text


def built(
    factory: Callable[..., Any], name: str, args: Mapping[str, Any], device: torch.device, dtype: torch.dtype | None
) -> LoopedModel:
    """The model that a callable makes, on its device, frozen and in evaluation mode.

    Raises:
        LoopscopeError: it does not take `args`, or what it makes lacks a part of the `LoopedModel` protocol.
    """
    from torch import nn

    strange = next((key for key in args if not _takes(factory, key)), None)
    if strange is not None:
        known = [key for key in _parameters(factory) if key not in ("device", "dtype")]
        there = f"it takes {', '.join(known)}" if known else "it takes none"
        raise LoopscopeError(f"{name} takes no {strange}: {there}; see {setting('model_args')}")
    wanted = {"device": device, "dtype": dtype}
    taken = {key: value for key, value in wanted.items() if key not in args and _takes(factory, key)}
    required = [key for key, p in _parameters(factory).items() if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    missing = next((key for key in required if key not in args and key not in taken), None)
    if missing is not None:
        raise LoopscopeError(f"{name} needs {missing}: give it with {setting('model_args', f'{missing}=…')}")
    with user_code(f"{name}({', '.join([*args, *taken])})", always=True):
        model = factory(**args, **taken)
    if isinstance(model, nn.Module):
        if len(taken) < len(wanted):
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
        raise LoopscopeError(f"the entry point {point.name} = {point.value} names no callable")
    return factory  # type: ignore[no-any-return]


def _entry_points(group: str) -> dict[str, metadata.EntryPoint]:
    found: dict[str, metadata.EntryPoint] = {}
    for point in metadata.entry_points(group=group):
        known = found.setdefault(point.name, point)
        if known.value != point.value:
            raise LoopscopeError(
                f"two packages bring a model called {point.name!r} ({known.value}, {point.value}): uninstall one"
            )
    return found


def _parameters(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Those that a name can be given to."""
    given = inspect.signature(factory).parameters
    return {name: p for name, p in given.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY, p.VAR_KEYWORD)}


def _takes(factory: Callable[..., Any], name: str) -> bool:
    parameters = _parameters(factory)
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
