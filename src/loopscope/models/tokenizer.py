"""Text to token ids and back, and messages to the text that a model was trained to read them as.

The token ids of a `tokenizer.json` are those of that file. Special tokens and SentencePiece or tiktoken
files are read by transformers, without code of the checkpoint. Families differ: Ouro's file adds nothing, ever;
Huginn's prepends its beginning-of-sequence token when special tokens are wanted. `encode` adds none unless asked to;
`prefix_ids` are what the file would put before a text.

A chat template is Jinja, comes with the checkpoint and is rendered in Jinja's immutable sandbox, with the blank
handling, filters and functions that templates are written for. Rendering agrees with transformers'
`apply_chat_template`, except that it has limits of time and size, and no clock: the same call gives the same text
tomorrow.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from loopscope.errors import LoopscopeError, setting, shown, text
from loopscope.limits import TimeLimitError, check_regular, time_limit
from loopscope.models.checkpoint import CONFIG, TOKENIZER, TOKENIZER_FILES, fetch, read_json_object
from loopscope.models.registry import entry_points, load_code, parse_name

_DESCRIPTIONS = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
"""Files next to tokenizer.json that transformers reads."""
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Tokens that a chat template may name."""
MOST_RENDERED_CHARACTERS = 10_000_000
"""Characters that rendering may come to: a template is a program, and a short one can write without end."""
MOST_SECONDS = 10.0
"""Of rendering one conversation."""
MOST_BITS = 10_000
"""Of a power that a template computes."""


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template.

    Attributes:
        source: the Jinja text.
        special_tokens: the texts of the tokens that it may name, such as `bos_token`.
        where: the place to show in an error.
    """

    source: str
    special_tokens: Mapping[str, str]
    where: str

    @property
    def sha256(self) -> str:
        """The hash of all that decides what is written."""
        content = [self.source, dict(sorted(self.special_tokens.items()))]
        return hashlib.sha256(json.dumps(content, ensure_ascii=False).encode()).hexdigest()

    def render(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> str:
        """The text of a conversation, up to where the model's answer begins."""
        if not self._writes_messages:
            raise LoopscopeError(
                f"{self.where}: the chat template does not write the user's message, so that no question would reach "
                "the model; leave the chat template out"
            )
        return self._rendered(messages, add_generation_prompt)

    @cached_property
    def _writes_messages(self) -> bool:
        """Whether two questions give two texts."""
        return len({self._rendered([{"role": "user", "content": word}], True) for word in ("one", "other")}) == 2

    def _rendered(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:
        given = {"messages": [dict(message) for message in messages], "add_generation_prompt": add_generation_prompt}
        pieces: list[str] = []
        size = 0
        try:
            with time_limit(MOST_SECONDS):
                compiled = _environment().from_string(self.source)
                for piece in compiled.generate(**given, tools=None, documents=None, **self.special_tokens):
                    pieces.append(piece)
                    size += len(piece)
                    if size > MOST_RENDERED_CHARACTERS:
                        raise LoopscopeError(f"{self.where}: the chat template writes more than {size} characters")
        except TimeLimitError:
            raise LoopscopeError(f"{self.where}: the chat template takes more than {MOST_SECONDS:g} seconds") from None
        except LoopscopeError:
            raise
        except Exception as error:  # a template is a program, which may raise anything
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise LoopscopeError(f"{self.where}: the chat template refuses this conversation ({reason})") from error
        return "".join(pieces)


@cache
def _environment() -> Any:
    import jinja2.ext
    import jinja2.nodes
    import jinja2.sandbox

    class Generation(jinja2.ext.Extension):
        """`{% generation %}` marks what an assistant wrote; the text inside stands as it is."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body).set_lineno(line)

    class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
        """The sandbox, in which no single operation takes long or fills the memory."""

        intercepted_binops = frozenset({"*", "**"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if operator == "**":
                size = left.bit_length() * abs(right) if isinstance(left, int) and isinstance(right, int) else 0
            else:
                size = max((len(x) * n for x, n in ((left, right), (right, left)) if hasattr(x, "__len__")), default=0)
            if size > (MOST_BITS if operator == "**" else MOST_RENDERED_CHARACTERS):
                raise OverflowError(f"{operator} makes something too large")
            return super().call_binop(context, operator, left, right)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment: Any = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    # As transformers writes it, whose template filter leaves what is not ASCII as it is.
    environment.filters["tojson"] = lambda value, ensure_ascii=False, **options: json.dumps(
        value, ensure_ascii=ensure_ascii, **options
    )
    # `strftime_now` is left undefined: with today's date in it, the same call would be another one tomorrow.
    environment.globals["raise_exception"] = refuse
    return environment


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer.

    Attributes:
        source: the file it was read from, or what kind of object it was.
        backend: the `tokenizers` object, without truncation and padding.
        sha256: the hash of its content: of tokenizer.json where it has that file.
        vocabulary_size: the highest token id plus one.
        prefix_ids: what `encode(…, special_tokens=True)` puts before the text.
        bos_id: beginning of sequence, if the checkpoint names one.
        eos_ids: every token that ends a text.
        chat_template: the one that comes with it, if any.
    """

    source: str
    backend: Backend
    sha256: str
    vocabulary_size: int
    prefix_ids: tuple[int, ...]
    bos_id: int | None
    eos_ids: tuple[int, ...]
    chat_template: ChatTemplate | None = None

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """The tokenizer of a checkpoint folder, or of its folder "tokenizer"."""
        if not os.path.lexists(folder / TOKENIZER) and (folder / "tokenizer" / TOKENIZER).is_file():
            folder = folder / "tokenizer"
        config = read_json_object(folder / CONFIG) if (folder / CONFIG).is_file() else {}
        # Retrofitted checkpoints carry over Huginn's token ids, which mean nothing in the base model's tokenizer.
        inherited = config.get("model_type") == "huginn_raven" and not config.get("qk_bias")
        special = {} if inherited else config
        if os.path.lexists(folder / TOKENIZER):
            # Without a description transformers has nothing to add, and importing it takes longer than a small run.
            described = any((folder / name).is_file() for name in _DESCRIPTIONS)
            fast = _with_transformers(folder, "PreTrainedTokenizerFast") if described else None
            tokenizer = _from_file(folder / TOKENIZER, fast, special)
        else:
            # For a folder with tokenizer.json AutoTokenizer may build it anew, with other tokens than the file's.
            described_by = folder / "tokenizer_config.json"
            if not (described_by.is_file() and read_json_object(described_by).get("tokenizer_class")):
                # transformers would guess the class of a SentencePiece file, and its guess gives other ids.
                raise LoopscopeError(
                    f"{folder} has neither {TOKENIZER} nor a tokenizer_config.json that names a tokenizer_class: "
                    f"download them from the model's own repository, or give {setting('tokenizer')}"
                )
            fast = _with_transformers(folder, "AutoTokenizer")
            tokenizer = _tokenizer(str(folder), _backend_of(fast), fast, special)
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

    def encode(self, text: str, *, special_tokens: bool = False) -> list[int]:
        """The token ids of a text, with what the tokenizer adds around it only if wanted."""
        return self.encode_batch([text], special_tokens=special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], *, special_tokens: bool = False) -> list[list[int]]:
        """The same for many texts, in parallel."""
        with _in_one_line(self.source):
            return [each.ids for each in self.backend.encode_batch_fast(list(texts), add_special_tokens=special_tokens)]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The characters that each token of `encode(text)` covers."""
        with _in_one_line(self.source):
            return list(self.backend.encode(text, add_special_tokens=False).offsets)

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        listed = list(ids)  # what is not a list of ids stays a TypeError
        with _in_one_line(self.source):
            return str(self.backend.decode(listed, skip_special_tokens=skip_special_tokens))

    def texts(self) -> list[str]:
        """What every id adds to a text, blanks included; special tokens by their names."""
        # Some decoders drop the blank that begins a text, so each id is read behind another one.
        before = self.encode("a")[-1:]
        known = len(self.decode(before))
        read = (self.decode([*before, number])[known:] for number in range(self.vocabulary_size))
        return [text or self.backend.id_to_token(number) or "" for number, text in enumerate(read)]


@contextmanager
def _in_one_line(source: object) -> Iterator[None]:
    """Whatever the libraries raise for a damaged or unusable tokenizer, as one line."""
    try:
        yield
    except LoopscopeError:
        raise
    except BaseException as error:  # panics of the Rust library are not an `Exception`
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = " ".join(f"{error or type(error).__name__}".split())[:160]
        raise LoopscopeError(f"the tokenizer {source} cannot be used ({reason}); download or export it again") from None


def _with_transformers(folder: Path, kind: str) -> Any:
    import transformers

    with _in_one_line(folder):
        return getattr(transformers, kind).from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)


def _backend_of(given: Any) -> Backend:
    backend = getattr(given, "backend_tokenizer", None)
    if not isinstance(backend, Backend):
        raise LoopscopeError(
            f"{type(given).__name__} has no fast version, whose tokens are those of a {TOKENIZER}: "
            "give token ids (loopscope.Task.from_ids)"
        )
    return backend


def _from_file(path: Path, fast: Any = None, config: Mapping[str, Any] | None = None) -> Tokenizer:
    """A file in the format of tokenizer.json, by itself or with what describes its special tokens."""
    check_regular(path, "tokenizer")
    with _in_one_line(path):
        backend = Backend.from_file(str(path))
    return _tokenizer(str(path), backend, fast, config or {}, hashlib.sha256(path.read_bytes()).hexdigest())


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
        bare, around = (backend.encode("a", add_special_tokens=added).ids for added in (False, True))
    if getattr(backend.model, "dropout", None):
        raise LoopscopeError(
            f"{source} draws its tokens at random (BPE dropout {backend.model.dropout}): "
            "set dropout to null in tokenizer.json, and every call gives the same ids"
        )
    starts = (start for start in range(len(around)) if bare and around[start : start + len(bare)] == bare)

    def ids(role: str) -> tuple[int, ...]:
        stated = config.get(f"{role}_id")
        found = [getattr(fast, f"{role}_id", None), *(stated if isinstance(stated, list) else [stated])]
        return tuple(dict.fromkeys(number for number in found if type(number) is int))

    named = {role: str(held) for role in SPECIAL_TOKENS if (held := getattr(fast, role, None)) is not None}
    template = getattr(fast, "chat_template", None)
    template = template.get("default") if isinstance(template, Mapping) else template
    return Tokenizer(
        source,
        backend,
        sha256 or hashlib.sha256(backend.to_str().encode()).hexdigest(),
        size,
        tuple(around[: next(starts, len(around))]),
        next(iter(ids("bos_token")), None),
        ids("eos_token"),
        ChatTemplate(template, named, source) if isinstance(template, str) and template else None,
    )


def load_tokenizer(spec: Any, *, offline: bool | None = None, vocabulary_size: int | None = None) -> Tokenizer:
    """A tokenizer: of the model that a specification names, without its weights; of a file; of an object.

    Args:
        spec: as in `load_model`; or a tokenizer.json; or a tokenizer of transformers or tokenizers.
        offline: as in `load_model`.
        vocabulary_size: the model's; a tokenizer with more tokens is refused.
    """
    tokenizer = _named(text("spec", spec), offline) if isinstance(spec, str | os.PathLike) else from_object(spec)
    if vocabulary_size is not None:
        tokenizer.check_fits(vocabulary_size, "the model")
    return tokenizer


def from_object(given: Any) -> Tokenizer:
    """The tokenizer of an object as it is now: ours, or one of tokenizers or transformers."""
    if isinstance(given, Tokenizer):
        return given
    source = f"the {type(given).__name__} object"
    if isinstance(given, Backend):
        return _tokenizer(source, given, None, {})
    if hasattr(given, "convert_ids_to_tokens"):
        return _tokenizer(source, _backend_of(given), given, {})
    raise LoopscopeError(
        f"{setting('tokenizer')} takes a name, a folder, or a tokenizer of transformers or tokenizers, "
        f"not {shown(given)} (a {type(given).__name__})"
    )


def tokenizer_of(model: Any, given: Any = None) -> Tokenizer:
    """The tokenizer that was given, by name or as an object, the model's own, or the one of its checkpoint."""
    given = getattr(model, "tokenizer", None) if given is None else given
    given = getattr(getattr(model, "card", None), "checkpoint", None) if given is None else given
    if given is None:
        raise LoopscopeError(f"{model.name} comes without a tokenizer: give tokenizer=, or token ids")
    return load_tokenizer(given)


def _named(spec: str, offline: bool | None) -> Tokenizer:
    if spec.endswith(".json") and not os.path.isdir(spec):
        return _from_path(Path(spec))
    source = parse_name(spec)
    if source.is_code:
        code = entry_points("loopscope.tokenizers").get(source.name)
        if code is None:
            raise LoopscopeError(no_tokenizer(source.name))
        made = load_code(code)()
        return _from_path(Path(made)) if isinstance(made, str | os.PathLike) else from_object(made)
    if source.kind != "hub":
        return Tokenizer.from_folder(Path(source.location))
    elsewhere = None if source.published is None else source.published.tokenizer_repo
    where = (source.location, source.revision) if elsewhere is None else (elsewhere, None)
    return Tokenizer.from_folder(fetch(*where, TOKENIZER_FILES, offline=offline))


def _from_path(path: Path) -> Tokenizer:
    """Of a folder, a tokenizer.json with what describes it in its folder, or a file of that format alone."""
    if path.is_dir() or path.name == TOKENIZER:
        return Tokenizer.from_folder(path if path.is_dir() else path.parent)
    return _from_file(path)


def no_tokenizer(name: str) -> str:
    """The complaint about a model of the user's own that cannot read text."""
    return (
        f"{name} brings no tokenizer for tasks in text: give {setting('tokenizer')}, or tasks of token ids "
        f"(loopscope.Task.from_ids), or set model.tokenizer"
    )
