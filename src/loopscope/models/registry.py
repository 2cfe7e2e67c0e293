"""Which model a name means, and where that model comes from.

ouro-1.4b                       a published checkpoint at its pinned commit (`published`)
ByteDance/Ouro-1.4B@main        a hub name, with a branch, tag or commit
toy-ouro                        a model inside the package (`embedded`)
runs/step-900, ./toy-ouro       a local folder
my-model                        an entry point of an installed package (`user_models`)
mine.py:build, pkg.module:build a function that makes the model (`user_models`)

Everything else that decides what is computed is given as `model_args` (`load`).
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from loopscope.errors import LoopscopeError, setting, shown
from loopscope.models.checkpoint.config import CONFIG
from loopscope.models.published import PUBLISHED, Published
from loopscope.models.user_models import OBJECT, names_code, user_models

Kind = Literal["hub", "folder", "embedded", "entry point", "code"]
EMBEDDED = Path(__file__).parent / "embedded"
LONGEST_NAME = 4096
"""Characters of a name: the longest path of common systems."""
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class Source:
    """Where a model comes from.

    Attributes:
        name: what the model is called in tables.
        kind: hub, folder, embedded, entry point or code.
        location: the hub name, the folder, the entry point's name, or where the callable is.
        revision: the commit, tag or branch to take from the hub; None is the newest.
        published: the known checkpoint, if it is one.
    """

    name: str
    kind: Kind
    location: str
    revision: str | None = None
    published: Published | None = None

    @property
    def is_code(self) -> bool:
        """Whether a callable of the user's own makes the model."""
        return self.kind in ("entry point", "code")

    @property
    def folder(self) -> Path | None:
        """The folder on disk, where there is one without asking the hub."""
        return Path(self.location) if self.kind in ("folder", "embedded") else None


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
    if len(name) > LONGEST_NAME:
        raise LoopscopeError(f"the model {shown(name)} is longer than {LONGEST_NAME} characters: no model is called so")
    if name.startswith(OBJECT):
        raise LoopscopeError(
            f"{shown(name.removeprefix(OBJECT))} was a model in memory: give the model itself, as in "
            f"loopscope.measure(model, …) or run.verify(model=model)"
        )
    if (name.startswith("loop:") or re.search(r":\w+=", name)) and not _is_dir(_expanded(name)):
        raise LoopscopeError(
            f"{shown(name)} gives options in a name: name the model alone and give them with {setting('model_args')}, "
            "such as loop=10-20"
        )
    found = _named(name)
    if found is not None:
        return found
    base, at, revision = name.rpartition("@")
    found = _named(base) if at else None
    if found is None:
        raise unknown_name(name)
    if not revision:
        raise LoopscopeError(f"the revision of {found.name} is empty: give a branch, a tag or a commit after the @")
    if found.kind != "hub":
        raise LoopscopeError(f"{found.name} is not a hub model and has no revisions: leave {shown('@' + revision)} out")
    return replace(found, revision=revision)


def _named(spec: str) -> Source | None:
    folder = _expanded(spec)
    looks_like_path = "/" in spec or "\\" in spec or spec.startswith((".", "~"))
    if looks_like_path and _is_dir(folder):
        return _folder(folder)
    if published := find_published(spec):
        return Source(published.name, "hub", published.repo_id, published.revision, published)
    if path := embedded_models().get(spec.lower()):
        return Source(path.name, "embedded", str(path))
    if spec in user_models():
        return Source(spec, "entry point", spec)
    if spec and _is_dir(folder):
        return _folder(folder)
    if folder.is_file():
        builder = f": name what builds the model, as in {_in_one_line(spec)}:build" if folder.suffix == ".py" else None
        raise LoopscopeError(f"{_in_one_line(spec)} is a file{builder or ': give the folder it lies in'}")
    if names_code(spec):
        return Source(spec, "code", spec)
    if _HUB_NAME.fullmatch(spec):
        return Source(spec, "hub", spec)
    if looks_like_path and "@" not in spec:
        raise LoopscopeError(f"the folder {_in_one_line(spec)} does not exist; a hub name is ORGANISATION/NAME")
    return None


def _folder(folder: Path) -> Source:
    resolved = folder.resolve()
    return Source(resolved.name, "folder", str(resolved))


def _expanded(spec: str) -> Path:
    try:
        return Path(spec).expanduser()
    except RuntimeError:  # ~name of nobody
        raise LoopscopeError(f"{shown(spec)} names the home of an unknown user: give the folder's whole path") from None


def _is_dir(folder: Path) -> bool:
    try:
        return folder.is_dir()
    except OSError as error:  # a part that is too long for the system, or a folder that may not be searched
        raise LoopscopeError(f"the folder {shown(str(folder))} cannot be looked at: {error.strerror}") from None


def _in_one_line(path: str) -> str:
    return " ".join(path.split())


def known_names() -> list[str]:
    """Every name, for listings and for guessing what somebody meant."""
    published = [name for entry in PUBLISHED for name in (entry.name, entry.repo_id)]
    return [*embedded_models(), *published, *user_models()]


def unknown_name(name: str) -> LoopscopeError:
    """The complaint about a name that nothing answers to, with the nearest ones that exist."""
    by_lower = {known.lower(): known for known in known_names()}
    close = [by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)]
    guess = f"did you mean {' or '.join(close)}? " if close else ""
    folder = " ".join(Path(name).name.split())
    return LoopscopeError(
        f"there is no model {shown(name)}: {guess}`loopscope models` lists the names; a hub name is ORGANISATION/NAME, "
        f"a folder is a path such as ./{folder}"
    )
