"""`load_tokenizer`: the tokenizer of whatever a specification names, without its weights."""

from __future__ import annotations

import os
from pathlib import Path

from loopscope._arguments import optional_text, text
from loopscope._errors import LoopscopeError
from loopscope.models.hub import HubRepository
from loopscope.models.registry import load_entry_point, user_tokenizers
from loopscope.models.source import parse_spec
from loopscope.models.tokenizer import Tokenizer


def load_tokenizer(
    spec: str | os.PathLike[str],
    *,
    revision: str | None = None,
    offline: bool | None = None,
    vocabulary_size: int | None = None,
) -> Tokenizer:
    """The tokenizer of the model that a specification names, without its weights.

    Args:
        spec: as in `load_model`.
        revision: as in `load_model`.
        offline: as in `load_model`.
        vocabulary_size: the model's; a tokenizer with more tokens is refused.
    """
    source = parse_spec(text("spec", spec), optional_text("revision", revision))
    if source.kind == "entry point":
        tokenizer = _user_tokenizer(source.location)
    else:
        folder = source.folder or HubRepository(source.location, source.revision, offline=offline).fetch_tokenizer()
        tokenizer = Tokenizer.from_folder(folder)
    if vocabulary_size is not None:
        tokenizer.check_fits(vocabulary_size, source.name)
    return tokenizer


def _user_tokenizer(name: str) -> Tokenizer:
    point = user_tokenizers().get(name)
    if point is None:
        raise LoopscopeError(
            f"{name} brings no tokenizer: name a callable that returns its folder in the entry point group "
            f"loopscope.tokenizers"
        )
    made = load_entry_point(point)()
    return made if isinstance(made, Tokenizer) else Tokenizer.from_folder(Path(made))
