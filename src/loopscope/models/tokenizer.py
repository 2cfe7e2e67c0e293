"""Text to token ids and back, with what a tokenizer adds around a text on record.

The token ids of a `tokenizer.json` are those of that file. Special tokens, chat templates and SentencePiece or tiktoken
files are read by transformers, without code of the checkpoint. Families differ: Ouro's file adds nothing, ever;
Huginn's prepends its beginning-of-sequence token when special tokens are asked for. `encode` adds none unless asked;
`prefix_ids` and `suffix_ids` say what the file would add.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from loopscope.errors import LoopscopeError, setting, shown, text
from loopscope.limits import check_regular
from loopscope.models.chat_template import SPECIAL_TOKENS, ChatTemplate
from loopscope.models.checkpoint.config import CONFIG, TOKENIZER, read_json_object
from loopscope.models.checkpoint.hub import HubRepository
from loopscope.models.registry import Source, parse_name
from loopscope.models.user_models import load_entry_point, user_tokenizers

_DESCRIPTIONS = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
"""Files beside tokenizer.json that transformers reads."""
_OTHER_FORMATS = ("tokenizer.model", "spiece.model", "tiktoken.model", "vocab.json")


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer.

    Attributes:
        source: the file it was read from, or what kind of object it was.
        backend: the `tokenizers` object, without truncation and padding.
        sha256: the hash of its content: of tokenizer.json where it has that file.
        vocabulary_size: the highest token id plus one.
        prefix_ids: what `encode(…, special_tokens=True)` puts before the text.
        suffix_ids: what it puts after the text.
        bos_id: beginning of sequence, if the checkpoint names one.
        eos_ids: every token that ends a text.
        pad_id: the padding token, if the checkpoint names one.
        chat_template: the one that comes with it, if any.
    """

    source: str
    backend: Backend
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
        """The tokenizer of a checkpoint folder, or of its folder "tokenizer"."""
        if not os.path.lexists(folder / TOKENIZER) and (folder / "tokenizer" / TOKENIZER).is_file():
            folder = folder / "tokenizer"
        path, config = folder / TOKENIZER, _read_optional(folder / CONFIG)
        if os.path.lexists(path):
            backend, sha256 = _read(path), hashlib.sha256(path.read_bytes()).hexdigest()
            described = any((folder / name).is_file() for name in _DESCRIPTIONS)
            # Without a description transformers has nothing to add, and importing it takes longer than a small run.
            fast = _with_transformers(folder) if described else None
        else:
            path, fast = folder, _converted(folder)
            backend, sha256 = fast.backend_tokenizer, None
        # Retrofitted checkpoints carry over Huginn's token ids, which mean nothing in the base model's tokenizer.
        inherited = config.get("model_type") == "huginn_raven" and not config.get("qk_bias")
        tokenizer = _tokenizer(str(path), backend, fast, {} if inherited else config, sha256)
        stated = config.get("padded_vocab_size", config.get("vocab_size"))
        if isinstance(stated, int):
            tokenizer.check_fits(stated, str(folder))
        return tokenizer

    @classmethod
    def from_file(cls, path: Path) -> Tokenizer:
        """A tokenizer.json with what describes it in its folder; a file of another name stands alone."""
        if path.name == TOKENIZER:
            return cls.from_folder(path.parent)
        if path.suffix != ".json":
            raise LoopscopeError(f"{path} is not a tokenizer: give a {TOKENIZER} or a folder that transformers reads")
        return _tokenizer(str(path), _read(path), None, {}, hashlib.sha256(path.read_bytes()).hexdigest())

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
        """The token ids of a text, with what the tokenizer adds around it only if asked."""
        with _in_one_line(self.source):
            ids: list[int] = self.backend.encode(text, add_special_tokens=special_tokens).ids
            return ids

    def encode_batch(self, texts: Sequence[str], *, special_tokens: bool = False) -> list[list[int]]:
        """The same for many texts, in parallel."""
        with _in_one_line(self.source):
            encoded = self.backend.encode_batch_fast(list(texts), add_special_tokens=special_tokens)
            return [found.ids for found in encoded]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The characters that each token of `encode(text)` covers."""
        with _in_one_line(self.source):
            places: list[tuple[int, int]] = self.backend.encode(text, add_special_tokens=False).offsets
            return places

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        listed = list(ids)
        with _in_one_line(self.source):
            text: str = self.backend.decode(listed, skip_special_tokens=skip_special_tokens)
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


@contextmanager
def _in_one_line(source: object) -> Iterator[None]:
    """Whatever the libraries raise for a damaged or unusable tokenizer, as one line."""
    try:
        yield
    except LoopscopeError:
        raise
    except BaseException as error:  # panics of the Rust library are no `Exception`
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = " ".join(f"{error or type(error).__name__}".split())[:160]
        raise LoopscopeError(f"the tokenizer {source} cannot be used ({reason}); download or export it again") from None


def _read(path: Path) -> Backend:
    check_regular(path, "tokenizer")
    with _in_one_line(path):
        return Backend.from_file(str(path))


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}


def _with_transformers(folder: Path, converted: bool = False) -> Any:
    """The tokenizer of transformers; its AutoTokenizer also converts files of other formats."""
    import transformers

    # AutoTokenizer may build a tokenizer.json anew for its class, with other tokens than the file's.
    kind: Any = transformers.AutoTokenizer if converted else transformers.PreTrainedTokenizerFast
    with _in_one_line(folder):
        return kind.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)


def _converted(folder: Path) -> Any:
    others = [name for name in _OTHER_FORMATS if (folder / name).is_file()]
    others += [path.name for path in folder.glob("*.tiktoken")]
    if not others:
        raise LoopscopeError(
            f"{folder} has no {TOKENIZER}: download it from the model's own repository, or give {setting('tokenizer')}"
        )
    if not _read_optional(folder / "tokenizer_config.json").get("tokenizer_class"):
        # transformers would guess, and its guess gives other ids than SentencePiece.
        raise LoopscopeError(
            f"{folder / others[0]} alone does not say how it is used: add a tokenizer_config.json that names its "
            f'tokenizer_class, such as {{"tokenizer_class": "LlamaTokenizer"}}'
        )
    found = _with_transformers(folder, converted=True)
    if not isinstance(getattr(found, "backend_tokenizer", None), Backend):
        raise _not_fast(found)
    return found


def _tokenizer(
    source: str, backend: Backend, fast: Any, config: Mapping[str, Any], sha256: str | None = None
) -> Tokenizer:
    """A tokenizer of its library's object, and of what transformers and config.json say of special tokens."""
    with _in_one_line(source):
        backend = Backend.from_str(backend.to_str()) if sha256 is None else backend
        # Some checkpoints bring the limits of their training run, which would silently cut every long text.
        backend.no_truncation()
        backend.no_padding()
        size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        prefix, suffix = _added_tokens(backend)
    if getattr(backend.model, "dropout", None):
        raise LoopscopeError(
            f"{source} draws its tokens at random (BPE dropout {backend.model.dropout}): "
            "set dropout to null in tokenizer.json, and every call gives the same ids"
        )

    def ids(role: str) -> tuple[int, ...]:
        stated = config.get(f"{role}_id")
        found = [getattr(fast, f"{role}_id", None), *(stated if isinstance(stated, list) else [stated])]
        return tuple(dict.fromkeys(number for number in found if type(number) is int))

    named = {role: str(held) for role in SPECIAL_TOKENS if (held := getattr(fast, role, None)) is not None}
    return Tokenizer(
        source,
        backend,
        sha256 or hashlib.sha256(backend.to_str().encode()).hexdigest(),
        size,
        prefix,
        suffix,
        next(iter(ids("bos_token")), None),
        ids("eos_token"),
        next(iter(ids("pad_token")), None),
        ChatTemplate.of(getattr(fast, "chat_template", None), named, source),
    )


def _added_tokens(backend: Backend) -> tuple[tuple[int, ...], tuple[int, ...]]:
    bare = backend.encode("a", add_special_tokens=False).ids
    full = backend.encode("a", add_special_tokens=True).ids
    for start in range(len(full) - len(bare) + 1):
        if bare and full[start : start + len(bare)] == bare:
            return tuple(full[:start]), tuple(full[start + len(bare) :])
    return tuple(full), ()


def from_object(given: Any, name: str = "tokenizer") -> Tokenizer:
    """The tokenizer of an object as it is now: ours, or one of tokenizers or transformers."""
    if isinstance(given, Tokenizer):
        return given
    source = f"the {type(given).__name__} object"
    if isinstance(given, Backend):
        return _tokenizer(source, given, None, {})
    if isinstance(getattr(given, "backend_tokenizer", None), Backend):
        return _tokenizer(source, given.backend_tokenizer, given, {})
    if hasattr(given, "convert_ids_to_tokens"):
        raise _not_fast(given)
    raise LoopscopeError(
        f"{setting(name)} takes a name, a folder, or a tokenizer of transformers or tokenizers, "
        f"not {shown(given)} (a {type(given).__name__})"
    )


def _not_fast(given: object) -> LoopscopeError:
    return LoopscopeError(
        f"{type(given).__name__} has no fast version, whose tokens are those of a {TOKENIZER}: "
        "give token ids (loopscope.Task.from_ids)"
    )


def load_tokenizer(
    spec: Any,
    *,
    offline: bool | None = None,
    vocabulary_size: int | None = None,
) -> Tokenizer:
    """A tokenizer: of the model that a specification names, without its weights; of a file; of an object.

    Args:
        spec: as in `load_model`; or a tokenizer.json; or a tokenizer of transformers or tokenizers.
        offline: as in `load_model`.
        vocabulary_size: the model's; a tokenizer with more tokens is refused.
    """
    tokenizer, name = _find(spec, offline)
    if vocabulary_size is not None:
        tokenizer.check_fits(vocabulary_size, name)
    return tokenizer


def _find(spec: Any, offline: bool | None) -> tuple[Tokenizer, str]:
    """The tokenizer, and what the model is called."""
    if not isinstance(spec, str | os.PathLike):
        return from_object(spec, "spec"), "the model"
    spec = text("spec", spec)
    if spec.endswith((".json", ".model")) and not os.path.isdir(spec):
        return Tokenizer.from_file(Path(spec)), "the model"
    source = parse_name(spec)
    if source.kind == "code":
        raise LoopscopeError(no_tokenizer(source.name))
    if source.kind == "entry point":
        return _user_tokenizer(source.location), source.name
    return Tokenizer.from_folder(source.folder or _fetch(source, offline)), source.name


def _fetch(source: Source, offline: bool | None) -> Path:
    elsewhere = None if source.published is None else source.published.tokenizer_repo
    where = (source.location, source.revision) if elsewhere is None else (elsewhere, None)
    return HubRepository(*where, offline=offline).fetch_tokenizer()


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
