"""Which model a name means: published checkpoints (`published.toml`), folders, the hub, and code of the user's own.

ouro-1.4b                       a published checkpoint at its pinned commit; the newest where none is pinned
ByteDance/Ouro-1.4B@main        a hub name, with a branch, tag or commit
toy-ouro                        a model inside the package (`embedded`)
runs/step-900, ./toy-ouro       a local folder
mine.py:build, pkg.module:build a function that makes the model
my-model                        the name that an installed package gives such a function, as an entry point in the group
                                `loopscope.models` (and one for a tokenizer in `loopscope.tokenizers`)

Everything else that decides what is computed is given as `model_args` (`load`). A function gets what they say, and
`device` and `dtype` if it takes them; if not, what it returns is moved there when it is an `nn.Module`. Modules are
frozen and put in evaluation mode. Code runs only when the user names it, never because a checkpoint does.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import json
import operator
import os
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from loopscope.errors import LoopscopeError, setting, shown, user_code
from loopscope.models.checkpoint import CONFIG

if TYPE_CHECKING:
    import torch

    from loopscope.models.protocol import LoopedModel

Kind = Literal["hub", "folder", "embedded", "entry point", "code"]
EMBEDDED = Path(__file__).parent / "embedded"
OBJECT = "object:"
"""What the specification of a model in memory begins with."""
FILE_MODULE = "loopscope_code_"
"""What the name of a file's module begins with: a name that no other module has, so that mine.py may be torch.py."""
RUN_DTYPE = "bfloat16"
"""What a published checkpoint is run in unless another dtype is named, however it is stored: the paper's protocol."""
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_WORD = r"[^\W\d]\w*"
_CODE = re.compile(rf"(.+\.py|{_WORD}(?:\.{_WORD})*):({_WORD}(?:\.{_WORD})*)")


@dataclass(frozen=True)
class Published:
    """One published checkpoint.

    Attributes:
        name: the short name, lower case.
        repo_id: its name on the hub.
        family: the name of its family.
        config: the part of config.json that decides shapes and arithmetic; empty where it is not known.
        stored_dtype: how the weights are stored; they are run in `RUN_DTYPE`.
        revision: the pinned commit, if one is known.
        parameters: unique parameters, a tied head counted once; None where they are not known.
        trained_depth: the number of loops it was trained for (on average, where that was drawn); None where unknown.
        certain: what was checked against the published code, counts or files, in one line.
        note: what is not certain about the entry, in one line; empty where everything was read from its own files.
        tokenizer_repo: the hub name of its tokenizer, where that is not its own.
    """

    name: str
    repo_id: str
    family: str
    config: Mapping[str, Any]
    stored_dtype: str
    revision: str | None = None
    parameters: int | None = None
    trained_depth: int | None = None
    certain: str = ""
    note: str = ""
    tokenizer_repo: str | None = None


def _published() -> tuple[Published, ...]:
    found = []
    for group in tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))["group"]:
        shared = {name: value for name, value in group.items() if name not in ("config", "checkpoint")}
        for entry in group["checkpoint"]:
            changes = entry.get("config", {"": None})
            config = _merged(group["config"], changes) if changes else {}
            name = entry["repo_id"].partition("/")[2].lower()
            found.append(Published(**{"name": name, **shared, **entry, "config": config}))
    return tuple(found)


def _merged(config: Any, changes: Any) -> Any:
    """The configuration with changes, those of its objects included."""
    if not isinstance(config, dict) or not isinstance(changes, dict):
        return changes
    changed = {name: _merged(config.get(name), value) for name, value in changes.items() if name}
    return config | changed


PUBLISHED = _published()


@dataclass(frozen=True)
class Source:
    """Where a model comes from.

    Attributes:
        spec: what the user wrote.
        name: what the model is called in tables.
        kind: hub, folder, embedded, entry point or code.
        location: the hub name, the folder, or where the function is.
        revision: the commit, tag or branch to take from the hub; None is the newest.
        published: the known checkpoint, if it is one.
    """

    spec: str
    name: str
    kind: Kind
    location: str
    revision: str | None = None
    published: Published | None = None

    @property
    def is_code(self) -> bool:
        """Whether a function of the user's own makes the model."""
        return self.kind in ("entry point", "code")


def find_published(name: str) -> Published | None:
    """The published checkpoint of a short name or a hub name, in upper or lower case.

    >>> find_published("bytedance/ouro-1.4b").name
    'ouro-1.4b'
    """
    wanted = name.lower()
    return next((entry for entry in PUBLISHED if wanted in (entry.name, entry.repo_id.lower())), None)


def embedded_models() -> dict[str, Path]:
    """The small trained models inside the package, by name."""
    return {path.parent.name: path.parent for path in sorted(EMBEDDED.glob(f"*/{CONFIG}"))}


def parse_name(name: str) -> Source:
    """The source that a model's name means.

    Raises:
        LoopscopeError: if there is no such model, with the nearest names.
    """
    if name.startswith(OBJECT):
        raise LoopscopeError(
            f"{shown(name.removeprefix(OBJECT))} was a model in memory: give the model itself, as in "
            f"loopscope.measure(model, …) or run.verify(model=model)"
        )
    found = _named(name)
    if found is not None:
        return found
    base, _, revision = name.rpartition("@")
    found = _named(base)
    if found is None:
        raise _unknown(name)
    if not revision or found.kind != "hub":
        raise LoopscopeError(f"{shown(name)}: a hub model takes a branch, a tag or a commit after the @, no other does")
    return replace(found, spec=name, revision=revision)


def _named(name: str) -> Source | None:
    is_dir = os.path.isdir(os.path.expanduser(name))
    is_path = is_dir and ("/" in name or "\\" in name or name.startswith((".", "~")))
    if not is_path:
        if published := find_published(name):
            return Source(name, published.name, "hub", published.repo_id, published.revision, published)
        if path := embedded_models().get(name.lower()):
            return Source(name, path.name, "embedded", str(path))
        if code := entry_points("loopscope.models").get(name):
            return Source(name, name, "entry point", code)
    if name and is_dir:
        folder = Path(name).expanduser().resolve()
        return Source(name, folder.name, "folder", str(folder))
    if os.path.isfile(os.path.expanduser(name)):
        advice = f"name what builds the model, as in {name}:build" if name.endswith(".py") else "give its folder"
        raise LoopscopeError(f"{' '.join(name.split())} is a file: {advice}")
    if names_code(name):
        return Source(name, name, "code", name)
    return Source(name, name, "hub", name) if _HUB_NAME.fullmatch(name) else None


def _unknown(name: str) -> LoopscopeError:
    """The complaint about a name that nothing answers to, with the nearest ones that exist."""
    published = (name for entry in PUBLISHED for name in (entry.name, entry.repo_id))
    known = [*embedded_models(), *published, *entry_points("loopscope.models")]
    by_lower = {each.lower(): each for each in known}
    close = [by_lower[match] for match in difflib.get_close_matches(name[:200].lower(), by_lower, n=3, cutoff=0.5)]
    guess = f"did you mean {' or '.join(close)}? " if close else ""
    return LoopscopeError(
        f"there is no model and no folder {shown(name)}: {guess}`loopscope models` lists the names; a hub name is "
        "ORGANISATION/NAME, a folder is a path such as ./checkpoint"
    )


def names_code(spec: str) -> bool:
    """Whether a specification has the form of a callable in a file or in a module.

    >>> [names_code(spec) for spec in ("mine.py:build", "a.b:C.make", "org/model@main", "toy-ouro")]
    [True, True, False, False]
    """
    return _CODE.fullmatch(spec) is not None


def load_code(spec: str) -> Callable[..., Any]:
    """The callable of `mine.py:build` or `package.module:build`; a file is run anew each time."""
    found = _CODE.fullmatch(spec)
    if found is None:
        raise LoopscopeError(f"{shown(spec)} does not name a function: write FILE.py:FUNCTION or MODULE:FUNCTION")
    place, name = found.groups()
    path = Path(place).expanduser().resolve() if place.endswith(".py") else None
    if path is not None and not path.is_file():
        raise LoopscopeError(f"there is no file {place}: a model in code is FILE.py:FUNCTION")
    # As `python FILE` does: what lies next to the file can be imported.
    folder = str(Path.cwd() if path is None else path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    with user_code(f"importing {place}", always=True):
        try:
            value: Any = importlib.import_module(place) if path is None else _run_file(path)
        except ModuleNotFoundError as error:
            advice = "install it, start where it is found, or put it next to the file"
            raise LoopscopeError(f"{spec} cannot be imported: {error}; {advice}") from error
        except SyntaxError as error:
            raise LoopscopeError(f"{error.filename}, line {error.lineno}: {error.msg}") from error
    try:
        value = operator.attrgetter(name)(value)
    except AttributeError:
        raise LoopscopeError(f"{place} has no {name}: the part after the colon names what builds the model") from None
    if not callable(value):
        raise LoopscopeError(f"{name} in {place} is a {type(value).__name__}: name a function that returns the model")
    return value  # type: ignore[no-any-return]


def _run_file(path: Path) -> ModuleType:
    name = FILE_MODULE + path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
            try:
                word = value.lower() if value.lower() in ("true", "false") else value
                found[name] = json.loads(word, parse_constant=str)
            except ValueError:
                found[name] = value
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
    from loopscope.models.protocol import LoopedModel

    parts = (name for name in {**LoopedModel.__annotations__, **vars(LoopedModel)} if not name.startswith("_"))
    missing = [name for name in parts if not hasattr(model, name)]
    if missing:
        advice = "loopscope.wrap makes a model of three functions, loopscope.LoopedModule of a class"
        if hasattr(model, "get_output_embeddings"):
            advice = "loopscope.loop_layers(model, FIRST, LAST) loops layers of a model of transformers"
        raise LoopscopeError(f"the model {shown(name)} lacks {', '.join(missing)}: {advice}")
    return model  # type: ignore[no-any-return]


def entry_points(group: str) -> dict[str, str]:
    """The functions that installed packages give a name, as `package.module:function`."""
    return {point.name: f"{point.module}:{point.attr}" for point in metadata.entry_points(group=group)}
