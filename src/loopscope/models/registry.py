"""Which model a specification names: every name there is, where the model comes from, and which layers to loop.

ouro-1.4b                       a published checkpoint at its pinned commit (`published`)
ByteDance/Ouro-1.4B@main        a hub name, with a branch, tag or commit of one's own
toy-ouro                        a model inside the package (`embedded`)
runs/step-900, ./toy-ouro       a local folder
loop:PATH_OR_NAME:10-20         any Llama-style checkpoint, layers 10 to 20 looped
my-model                        an entry point of an installed package (`user_models`)
mine.py:build, pkg.module:build a callable of one's own that makes the model (`user_models`)
NAME:CHOICE=VALUE,…             any of these, of a family that has choices (`choices`)
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from loopscope.errors import LoopscopeError, setting, shown
from loopscope.models.checkpoint.config import CONFIG
from loopscope.models.choices import split_choices
from loopscope.models.published import PUBLISHED, Published
from loopscope.models.user_models import OBJECT, names_code, user_models

Kind = Literal["hub", "folder", "embedded", "entry point", "code"]


EMBEDDED = Path(__file__).parent / "embedded"


LONGEST_SPEC = 4096
"""Characters of a specification: the longest path of common systems."""


_SPAN = re.compile(r"(\d{1,9})-(\d{1,9})", re.ASCII)
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
        span: first and last layer to loop, for `loop:` specifications.
        chosen: what the specification chooses of the model (`choices`).
    """

    name: str
    kind: Kind
    location: str
    revision: str | None = None
    published: Published | None = None
    span: tuple[int, int] | None = None
    chosen: Mapping[str, str] = field(default_factory=dict)

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


def parse_spec(spec: str, revision: str | None = None) -> Source:
    """The source that a specification names.

    Raises:
        LoopscopeError: if nothing answers to it, with the nearest names.
    """
    if len(spec) > LONGEST_SPEC:
        raise LoopscopeError(f"the model {shown(spec)} is longer than {LONGEST_SPEC} characters: no model is called so")
    if spec.startswith(OBJECT):
        raise LoopscopeError(
            f"{shown(spec.removeprefix(OBJECT))} was a model in memory: give the model itself, as in "
            f"loopscope.measure(model, …) or run.verify(model=model)"
        )
    base, chosen = (spec, {}) if "=" not in spec or _is_dir(_expanded(spec)) else split_choices(spec)
    if chosen:
        source = parse_spec(base, revision)
        if source.chosen:
            raise LoopscopeError(f"{shown(spec)} gives choices twice: write them once, as NAME:A=VALUE,B=VALUE")
        return replace(source, name=source.name + spec[len(base) :], chosen=chosen)
    if spec.startswith("loop:"):
        return _parse_loop(spec, revision)
    found = _named(spec)
    if found is None:
        name, at, given = spec.rpartition("@")
        found = _named(name) if at else None
        if found is None:
            raise unknown_name(spec)
        if revision is not None and revision != given:
            raise LoopscopeError(
                f"{shown(spec)} names one revision and {setting('revision', revision)} another: give one of them"
            )
        revision = given
    if revision is None:
        return found
    if not revision:
        raise LoopscopeError(
            f"the revision of {found.name} is empty: give a branch, a tag or a commit, or leave it out"
        )
    if found.kind != "hub":
        raise LoopscopeError(f"{found.name} is no hub model and has no revisions: leave {shown(revision)} out")
    return replace(found, revision=revision)


def _parse_loop(spec: str, revision: str | None) -> Source:
    base, _, layers = spec.removeprefix("loop:").rpartition(":")
    span = _SPAN.fullmatch(layers)
    if not base or span is None:
        raise LoopscopeError(f"{shown(spec)} is not loop:PATH_OR_NAME:FIRST-LAST, for example loop:org/model:10-20")
    source = parse_spec(base, revision)
    if source.is_code or source.span is not None:
        raise LoopscopeError(f"{shown(spec)}: only a checkpoint's layers can be looped, not {shown(base)}")
    return replace(source, name=f"loop:{source.name}:{layers}", span=(int(span[1]), int(span[2])))


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
