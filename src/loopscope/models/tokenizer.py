"""Text to token ids and back, from a checkpoint's tokenizer.json, with what it does about special tokens on record.

Families differ: Ouro's file adds nothing, ever; Huginn's prepends its beginning-of-sequence token when special
tokens are asked for. `encode` adds none unless told to; `prefix_ids` and `suffix_ids` say what the file would add.
`load_tokenizer` finds the tokenizer of whatever model a specification names, without the model's weights.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from loopscope.errors import LoopscopeError, optional_text, text
from loopscope.models.checkpoint.config import CONFIG, TOKENIZER, read_json_object
from loopscope.models.checkpoint.hub import HubRepository
from loopscope.models.registry import Source, parse_spec
from loopscope.models.user_models import load_entry_point, user_tokenizers


@dataclass(frozen=True)
class Tokenizer:
    """A checkpoint's tokenizer.

    Attributes:
        path: the tokenizer.json it was read from.
        backend: the `tokenizers` object; no truncation, no padding.
        vocabulary_size: the highest token id plus one.
        prefix_ids: what `encode(…, special_tokens=True)` puts before the text.
        suffix_ids: what it puts after the text.
        bos_id: beginning of sequence, if the checkpoint names one.
        eos_ids: every token that ends a text.
        pad_id: the padding token, if the checkpoint names one.
    """

    path: Path
    backend: Backend
    vocabulary_size: int
    prefix_ids: tuple[int, ...]
    suffix_ids: tuple[int, ...]
    bos_id: int | None
    eos_ids: tuple[int, ...]
    pad_id: int | None

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """The tokenizer of a checkpoint folder; config.json and tokenizer_config.json are read where they exist."""
        path = folder / TOKENIZER
        if not path.is_file():
            raise LoopscopeError(f"{folder} has no {TOKENIZER}: download it from the model's own repository")
        backend = _read_backend(path)
        config = _read_optional(folder / CONFIG)
        size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        prefix, suffix = _added_tokens(backend)
        special = _SpecialTokens(backend, folder, config)
        tokenizer = cls(
            path=path,
            backend=backend,
            vocabulary_size=size,
            prefix_ids=prefix,
            suffix_ids=suffix,
            bos_id=next(iter(special.ids("bos_token")), None),
            eos_ids=special.ids("eos_token"),
            pad_id=next(iter(special.ids("pad_token")), None),
        )
        stated = config.get("padded_vocab_size", config.get("vocab_size"))
        if isinstance(stated, int):
            tokenizer.check_fits(stated, str(folder))
        return tokenizer

    def check_fits(self, vocabulary_size: int, name: str) -> None:
        """Refuse a tokenizer that can produce ids the model has no embedding for; a smaller one is padding."""
        if self.vocabulary_size > vocabulary_size:
            raise LoopscopeError(
                f"{self.path} has {self.vocabulary_size} tokens and {name} only {vocabulary_size}: "
                f"it belongs to another model"
            )

    @property
    def special_token_policy(self) -> str:
        """What `encode(…, special_tokens=True)` adds, in words for a manifest."""
        phrases = [f"prepends {self._names(self.prefix_ids)}"] if self.prefix_ids else []
        phrases += [f"appends {self._names(self.suffix_ids)}"] if self.suffix_ids else []
        return " and ".join(phrases) or "adds nothing"

    @cached_property
    def sha256(self) -> str:
        """The hash of tokenizer.json."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    def encode(self, text: str, *, special_tokens: bool = False) -> list[int]:
        """The token ids of a text, with what tokenizer.json adds around it only if asked."""
        ids: list[int] = self.backend.encode(text, add_special_tokens=special_tokens).ids
        return ids

    def encode_batch(self, texts: Sequence[str], *, special_tokens: bool = False) -> list[list[int]]:
        """The same for many texts, in parallel."""
        return [found.ids for found in self.backend.encode_batch(list(texts), add_special_tokens=special_tokens)]

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        text: str = self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def _names(self, ids: Iterable[int]) -> str:
        return " ".join(f"{self.backend.id_to_token(number)} ({number})" for number in ids)


class _SpecialTokens:
    """Where bos, eos and pad are found: tokenizer_config.json, special_tokens_map.json, then config.json."""

    def __init__(self, backend: Backend, folder: Path, config: Mapping[str, Any]) -> None:
        self.backend = backend
        self.files = [_read_optional(folder / name) for name in ("tokenizer_config.json", "special_tokens_map.json")]
        # Retrofitted checkpoints carry over Huginn's token ids, which mean nothing in the base model's tokenizer.
        inherited = config.get("model_type") == "huginn_raven" and not config.get("qk_bias")
        self.config: Mapping[str, Any] = {} if inherited else config

    def ids(self, role: str) -> tuple[int, ...]:
        found = [self._named(file.get(role)) for file in self.files]
        stated = self.config.get(f"{role}_id")
        found += stated if isinstance(stated, list) else [stated]
        whole = [number for number in found if type(number) is int]
        return tuple(dict.fromkeys(whole))

    def _named(self, token: Any) -> int | None:
        content = token.get("content") if isinstance(token, dict) else token
        return self.backend.token_to_id(content) if isinstance(content, str) else None


def _read_backend(path: Path) -> Backend:
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for every kind of damage
        reason = " ".join(str(error).split())
        raise LoopscopeError(f"{path} cannot be read ({reason}); download it again") from None
    # Some checkpoints ship the limits of their training run, which would silently cut every long text.
    backend.no_truncation()
    backend.no_padding()
    return backend


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}


def _added_tokens(backend: Backend) -> tuple[tuple[int, ...], tuple[int, ...]]:
    bare = backend.encode("a", add_special_tokens=False).ids
    full = backend.encode("a", add_special_tokens=True).ids
    for start in range(len(full) - len(bare) + 1):
        if bare and full[start : start + len(bare)] == bare:
            return tuple(full[:start]), tuple(full[start + len(bare) :])
    return tuple(full), ()


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
        tokenizer = Tokenizer.from_folder(source.folder or _fetch(source, offline))
    if vocabulary_size is not None:
        tokenizer.check_fits(vocabulary_size, source.name)
    return tokenizer


def _fetch(source: Source, offline: bool | None) -> Path:
    elsewhere = None if source.published is None else source.published.tokenizer_repo
    where = (source.location, source.revision) if elsewhere is None else (elsewhere, None)
    folder = HubRepository(*where, offline=offline).fetch_tokenizer()
    assert folder is not None
    return folder


def _user_tokenizer(name: str) -> Tokenizer:
    point = user_tokenizers().get(name)
    if point is None:
        raise LoopscopeError(
            f"{name} brings no tokenizer: name a callable that returns its folder in the entry point group "
            f"loopscope.tokenizers"
        )
    made = load_entry_point(point)()
    return made if isinstance(made, Tokenizer) else Tokenizer.from_folder(Path(made))
