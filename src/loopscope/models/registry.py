"""Which model a name means, where that model comes from, and the published checkpoints (`published.toml`).

ouro-1.4b                       a published checkpoint at its pinned commit; the newest where none is pinned
ByteDance/Ouro-1.4B@main        a hub name, with a branch, tag or commit
toy-ouro                        a model inside the package (`embedded`)
runs/step-900, ./toy-ouro       a local folder
my-model                        an entry point of an installed package (`user_models`)
mine.py:build, pkg.module:build a function that makes the model (`user_models`)

Everything else that decides what is computed is given as `model_args` (`load`).
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from loopscope.errors import LoopscopeError, setting, shown
from loopscope.models.checkpoint import CONFIG
from loopscope.models.user_models import OBJECT, names_code, user_models

Kind = Literal["hub", "folder", "embedded", "entry point", "code"]
EMBEDDED = Path(__file__).parent / "embedded"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


RUN_DTYPE = "bfloat16"
"""What a published checkpoint is run in unless another dtype is named, however it is stored: the paper's protocol."""


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
        location: the hub name, the folder, the entry point's name, or where the callable is.
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
        """Whether a callable of the user's own makes the model."""
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
    if (name.startswith("loop:") or re.search(r":\w+=", name)) and not _is_dir(name):
        raise LoopscopeError(
            f"{shown(name)} gives options in a name: name the model alone and give them with {setting('model_args')}, "
            "such as loop=10-20"
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
    is_path = _is_dir(name) and ("/" in name or "\\" in name or name.startswith((".", "~")))
    if not is_path and (published := find_published(name)):
        return Source(name, published.name, "hub", published.repo_id, published.revision, published)
    if not is_path and (path := embedded_models().get(name.lower())):
        return Source(name, path.name, "embedded", str(path))
    if not is_path and name in user_models():
        return Source(name, name, "entry point", name)
    if name and _is_dir(name):
        folder = Path(name).expanduser().resolve()
        return Source(name, folder.name, "folder", str(folder))
    if os.path.isfile(os.path.expanduser(name)):
        advice = f"name what builds the model, as in {name}:build" if name.endswith(".py") else "give its folder"
        raise LoopscopeError(f"{' '.join(name.split())} is a file: {advice}")
    if names_code(name):
        return Source(name, name, "code", name)
    return Source(name, name, "hub", name) if _HUB_NAME.fullmatch(name) else None


def _is_dir(name: str) -> bool:
    return os.path.isdir(os.path.expanduser(name))


def _unknown(name: str) -> LoopscopeError:
    """The complaint about a name that nothing answers to, with the nearest ones that exist."""
    known = [*embedded_models(), *(name for entry in PUBLISHED for name in (entry.name, entry.repo_id)), *user_models()]
    by_lower = {each.lower(): each for each in known}
    close = [by_lower[match] for match in difflib.get_close_matches(name[:200].lower(), by_lower, n=3, cutoff=0.5)]
    guess = f"did you mean {' or '.join(close)}? " if close else ""
    return LoopscopeError(
        f"there is no model and no folder {shown(name)}: {guess}`loopscope models` lists the names; a hub name is "
        "ORGANISATION/NAME, a folder is a path such as ./checkpoint"
    )
