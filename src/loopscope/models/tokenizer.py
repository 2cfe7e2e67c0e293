"""Text to token ids and back, from a file or an object, with what it does about special tokens on record.

Families differ: Ouro's file adds nothing, ever; Huginn's prepends its beginning-of-sequence token when special
tokens are asked for. `encode` adds none unless told to; `prefix_ids` and `suffix_ids` say what the file would add.
`load_tokenizer` finds the tokenizer of whatever model a specification names, without the model's weights; it also takes
a tokenizer.json, a SentencePiece `.model`, and the objects of transformers, SentencePiece and tokenizers.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from loopscope.errors import LoopscopeError, optional_text, setting, shown, text
from loopscope.models.chat_template import MOST_TEMPLATE_CHARACTERS, SPECIAL_TOKENS, ChatTemplate
from loopscope.models.checkpoint.config import CONFIG, TOKENIZER, read_json_object
from loopscope.models.checkpoint.hub import HubRepository
from loopscope.models.registry import Source, parse_spec
from loopscope.models.tokenizer_backends import PythonBackend, SentencePieceBackend, TextBackend
from loopscope.models.user_models import load_entry_point, user_tokenizers
from loopscope.regular_files import check_regular, read_text

SENTENCEPIECE = "tokenizer.model"
"""What a folder calls its SentencePiece model."""
CHAT_TEMPLATE = "chat_template.jinja"


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer.

    Attributes:
        source: the file it was read from, or what kind of object it was.
        backend: the `tokenizers` object, without truncation and padding, or one that answers like it.
        sha256: the hash of its content: of tokenizer.json, of the SentencePiece model, of what an object saves.
        vocabulary_size: the highest token id plus one.
        prefix_ids: what `encode(…, special_tokens=True)` puts before the text.
        suffix_ids: what it puts after the text.
        bos_id: beginning of sequence, if the checkpoint names one.
        eos_ids: every token that ends a text.
        pad_id: the padding token, if the checkpoint names one.
        chat_template: the one that comes with it, if any.
    """

    source: str
    backend: TextBackend
    sha256: str
    vocabulary_size: int
    prefix_ids: tuple[int, ...]
    suffix_ids: tuple[int, ...]
    bos_id: int | None
    eos_ids: tuple[int, ...]
    pad_id: int | None
    chat_template: ChatTemplate | None = None

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """The tokenizer of a checkpoint folder: its tokenizer.json, or else its tokenizer.model."""
        if not (folder / TOKENIZER).is_file():
            if (folder / SENTENCEPIECE).is_file():
                return cls.from_file(folder / SENTENCEPIECE)
            raise LoopscopeError(
                f"{folder} has no {TOKENIZER}: download it from the model's own repository, or give "
                f"{setting('tokenizer')}"
            )
        return cls.from_file(folder / TOKENIZER)

    @classmethod
    def from_file(cls, path: Path) -> Tokenizer:
        """A tokenizer.json or a SentencePiece model; config.json and tokenizer_config.json beside it are read."""
        folder = path.parent
        config = _read_optional(folder / CONFIG)
        if path.suffix == ".model":
            tokenizer = from_sentencepiece(_read_sentencepiece(path), str(path))
            tokenizer = replace(tokenizer, chat_template=_chat_template(folder, path))
        elif path.suffix == ".json":
            backend = _read_backend(path)
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            tokenizer = _from_backend(backend, str(path), digest, _SpecialTokens(backend, folder, config).ids)
            tokenizer = replace(tokenizer, chat_template=_chat_template(folder, path))
        else:
            raise LoopscopeError(f"{path} is no tokenizer: give a {TOKENIZER}, a SentencePiece .model or their folder")
        stated = config.get("padded_vocab_size", config.get("vocab_size"))
        if isinstance(stated, int):
            tokenizer.check_fits(stated, str(folder))
        return tokenizer

    def check_fits(self, vocabulary_size: int, name: str) -> None:
        """Refuse a tokenizer that can produce ids the model has no embedding for; a smaller one is padding."""
        if self.vocabulary_size > vocabulary_size:
            raise LoopscopeError(
                f"{self.source} has {self.vocabulary_size} tokens and {name} only {vocabulary_size}: "
                f"it belongs to another model"
            )

    @property
    def special_token_policy(self) -> str:
        """What `encode(…, special_tokens=True)` adds, in words for a manifest."""
        phrases = [f"prepends {self._names(self.prefix_ids)}"] if self.prefix_ids else []
        phrases += [f"appends {self._names(self.suffix_ids)}"] if self.suffix_ids else []
        return " and ".join(phrases) or "adds nothing"

    def encode(self, text: str, *, special_tokens: bool = False) -> list[int]:
        """The token ids of a text, with what tokenizer.json adds around it only if asked."""
        ids: list[int] = self.backend.encode(text, add_special_tokens=special_tokens).ids
        return ids

    def encode_batch(self, texts: Sequence[str], *, special_tokens: bool = False) -> list[list[int]]:
        """The same for many texts, in parallel."""
        # Without their places in the text, where the library can leave them out.
        encode = getattr(self.backend, "encode_batch_fast", self.backend.encode_batch)
        return [found.ids for found in encode(list(texts), add_special_tokens=special_tokens)]

    def offsets(self, text: str) -> list[tuple[int, int]] | None:
        """The characters that each token of `encode(text)` covers; None where the library does not tell."""
        places: list[tuple[int, int]] | None = self.backend.encode(text, add_special_tokens=False).offsets
        return places

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        text: str = self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def texts(self) -> list[str]:
        """What every id adds to a text, blanks included; special tokens by their names."""
        # Some decoders drop the blank that begins a text, so each id is read behind another one.
        before = self.encode("a")[-1:]
        known = len(self.decode(before))
        read = (self.decode([*before, number])[known:] for number in range(self.vocabulary_size))
        return [text or self.backend.id_to_token(number) or "" for number, text in enumerate(read)]

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
    check_regular(path, "tokenizer")
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for every kind of damage
        reason = " ".join(str(error).split())
        raise LoopscopeError(f"{path} cannot be read ({reason}); download it again") from None
    return _unlimited(backend)


def _unlimited(backend: Backend) -> Backend:
    """Some checkpoints ship the limits of their training run, which would silently cut every long text."""
    backend.no_truncation()
    backend.no_padding()
    return backend


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}


def _chat_template(folder: Path, path: Path) -> ChatTemplate | None:
    """The template in a file of its own, which wins, or in tokenizer_config.json."""
    config, special = (_read_optional(folder / name) for name in ("tokenizer_config.json", "special_tokens_map.json"))
    named = {role: _content(config.get(role)) or _content(special.get(role)) for role in SPECIAL_TOKENS}
    tokens = {role: token for role, token in named.items() if token is not None}
    file = folder / CHAT_TEMPLATE
    given = read_text(file, "chat template", 4 * MOST_TEMPLATE_CHARACTERS) if file.is_file() else None
    return ChatTemplate.of(given or config.get("chat_template"), tokens, str(path))


def _content(token: Any) -> str | None:
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _read_sentencepiece(path: Path) -> Any:
    check_regular(path, "tokenizer")
    try:
        import sentencepiece
    except ImportError as error:
        raise LoopscopeError(f"{path} needs SentencePiece: pip install 'loopscope[sentencepiece]'") from error
    try:
        return sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (RuntimeError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:160]
        raise LoopscopeError(f"{path} is no SentencePiece model ({reason}); download it again") from None


def _from_backend(
    backend: TextBackend, source: str, sha256: str, ids: Callable[[str], tuple[int, ...]], size: int | None = None
) -> Tokenizer:
    if size is None:
        size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1  # type: ignore[attr-defined]
    prefix, suffix = _added_tokens(backend)
    bos, pad = (next(iter(ids(role)), None) for role in ("bos_token", "pad_token"))
    return Tokenizer(source, backend, sha256, size, prefix, suffix, bos, ids("eos_token"), pad)


def from_sentencepiece(processor: Any, source: str) -> Tokenizer:
    """A SentencePiece processor; what it was made to add (`add_bos=True`) is put before every sequence."""
    backend = SentencePieceBackend(processor)
    found = {f"{role}_token": getattr(processor, f"{role}_id")() for role in ("bos", "eos", "pad")}
    ids = {role: (number,) if number >= 0 else () for role, number in found.items()}
    return _from_backend(backend, source, backend.sha256(), ids.__getitem__, processor.vocab_size())


def from_object(given: Any, name: str = "tokenizer") -> Tokenizer:
    """The tokenizer of an object: ours, or one of transformers, SentencePiece or tokenizers, as it is now."""
    if isinstance(given, Tokenizer):
        return given
    source = f"the {type(given).__name__} object"
    if isinstance(given, Backend):
        # Without its limits, which a call of transformers may have set since: they are not what it encodes.
        backend = _unlimited(Backend.from_str(given.to_str()))
        digest = hashlib.sha256(backend.to_str().encode()).hexdigest()
        return _from_backend(backend, source, digest, lambda role: ())
    if hasattr(given, "serialized_model_proto"):
        return from_sentencepiece(given, source)
    if hasattr(given, "convert_ids_to_tokens") and hasattr(given, "special_tokens_map"):
        return _from_transformers(given, source)
    raise LoopscopeError(
        f"{setting(name)} takes a name, a file, or a tokenizer of transformers, SentencePiece or tokenizers,"
        f" not {shown(given)} (a {type(given).__name__})"
    )


def _from_transformers(given: Any, source: str) -> Tokenizer:
    def ids(role: str) -> tuple[int, ...]:
        number = getattr(given, f"{role}_id", None)
        return (number,) if isinstance(number, int) else ()

    fast = getattr(given, "backend_tokenizer", None)
    if isinstance(fast, Backend):
        tokenizer = replace(from_object(fast), source=source, bos_id=next(iter(ids("bos_token")), None))
        tokenizer = replace(tokenizer, eos_ids=ids("eos_token"), pad_id=next(iter(ids("pad_token")), None))
    else:
        backend = PythonBackend(given)
        size = max(given.get_vocab().values(), default=-1) + 1
        tokenizer = _from_backend(backend, source, backend.sha256(), ids, size)
    named = {role: str(token) for role, token in given.special_tokens_map.items() if role in SPECIAL_TOKENS}
    return replace(tokenizer, chat_template=ChatTemplate.of(getattr(given, "chat_template", None), named, source))


def _added_tokens(backend: TextBackend) -> tuple[tuple[int, ...], tuple[int, ...]]:
    bare = backend.encode("a", add_special_tokens=False).ids
    full = backend.encode("a", add_special_tokens=True).ids
    for start in range(len(full) - len(bare) + 1):
        if bare and full[start : start + len(bare)] == bare:
            return tuple(full[:start]), tuple(full[start + len(bare) :])
    return tuple(full), ()


def load_tokenizer(
    spec: Any,
    *,
    revision: str | None = None,
    offline: bool | None = None,
    vocabulary_size: int | None = None,
) -> Tokenizer:
    """A tokenizer: of the model that a specification names, without its weights; of a file; of an object.

    Args:
        spec: as in `load_model`; or a tokenizer.json or a SentencePiece .model; or a tokenizer of transformers,
            SentencePiece or tokenizers.
        revision: as in `load_model`.
        offline: as in `load_model`.
        vocabulary_size: the model's; a tokenizer with more tokens is refused.
    """
    if not isinstance(spec, str | os.PathLike):
        return _fitting(from_object(spec, "spec"), vocabulary_size, "the model")
    spec = text("spec", spec)
    if spec.endswith((".json", ".model")) and not os.path.isdir(spec):
        return _fitting(Tokenizer.from_file(Path(spec)), vocabulary_size, "the model")
    source = parse_spec(spec, optional_text("revision", revision))
    if source.kind == "code":
        raise LoopscopeError(no_tokenizer(source.name))
    if source.kind == "entry point":
        tokenizer = _user_tokenizer(source.location)
    else:
        tokenizer = Tokenizer.from_folder(source.folder or _fetch(source, offline))
    return _fitting(tokenizer, vocabulary_size, source.name)


def _fitting(tokenizer: Tokenizer, vocabulary_size: int | None, name: str) -> Tokenizer:
    if vocabulary_size is not None:
        tokenizer.check_fits(vocabulary_size, name)
    return tokenizer


def _fetch(source: Source, offline: bool | None) -> Path:
    elsewhere = None if source.published is None else source.published.tokenizer_repo
    where = (source.location, source.revision) if elsewhere is None else (elsewhere, None)
    folder = HubRepository(*where, offline=offline).fetch_tokenizer()
    assert folder is not None
    return folder


def no_tokenizer(name: str) -> str:
    """The complaint about a model of the user's own that cannot read text."""
    return (
        f"{name} brings no tokenizer for tasks in text: give {setting('tokenizer')}, or tasks of token ids "
        f"(loopscope.Task.from_ids), or set model.tokenizer"
    )


def _user_tokenizer(name: str) -> Tokenizer:
    point = user_tokenizers().get(name)
    if point is None:
        raise LoopscopeError(
            f"{name} brings no tokenizer: name a callable that returns its folder in the entry point group "
            f"loopscope.tokenizers"
        )
    made = load_entry_point(point)()
    if isinstance(made, str | os.PathLike):
        path = Path(made)
        return Tokenizer.from_file(path) if path.is_file() else Tokenizer.from_folder(path)
    return from_object(made)
