"""Every name a model can be called by: published checkpoints, models inside the package, and the user's own.

A user's model is an entry point in the group `loopscope.models`: its name on the left, a callable that returns a
`LoopedModel` on the right. A tokenizer for it may be named likewise in `loopscope.tokenizers`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from loopscope._errors import LoopscopeError, shown
from loopscope.models.checkpoint import CONFIG
from loopscope.models.published import PUBLISHED

MODEL_GROUP = "loopscope.models"
TOKENIZER_GROUP = "loopscope.tokenizers"
EMBEDDED = Path(__file__).parent / "embedded"


def embedded_models() -> dict[str, Path]:
    """The small trained models inside the package, by name."""
    return {path.parent.name: path.parent for path in sorted(EMBEDDED.glob(f"*/{CONFIG}"))}


def user_models() -> dict[str, metadata.EntryPoint]:
    """The models that installed packages bring, by name."""
    return _entry_points(MODEL_GROUP)


def user_tokenizers() -> dict[str, metadata.EntryPoint]:
    """The tokenizers that installed packages bring, by the model's name."""
    return _entry_points(TOKENIZER_GROUP)


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
