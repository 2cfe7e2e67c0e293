"""What a model is asked: a row of text, its token ids, the positions whose logits are scored, and their targets.

A prediction position p is the place whose logits predict token p + 1. Only tokens of the solution or of an
option are predicted; the prompt is context.

There are several ways from context and continuation to token ids, because a tokenizer need not put a boundary where
the text has one:

- `joint`: encode context + continuation as one text and the context alone; what follows the context's number of
  tokens is the continuation. Blanks at the end of the context first move over to the continuation, since most
  tokenizers glue a blank to the word after it. The model then reads the text exactly as it would be written.
- `separate`: encode the two alone and put them one after the other. The boundary is always clean, at the price of
  a tokenization that the whole text would not get.
- `harness`: as the Hugging Face model class of lm-evaluation-harness does it. Like `joint`, but line ends move over,
  too, special tokens are added as the tokenizer does by itself unless the text begins with one, the model reads the
  context's own tokens, and an empty context is one token, beginning of sequence or end of text.
- `ids`: the row has token ids, which are taken as they are.

A model that allows L positions takes sequences of at most L tokens. Longer ones are found and named before a pass
starts, then kept out or cut. Policies:

- "error": refuse, naming how many questions are too long and which.
- "skip": leave those questions out. A choice is left out whole, since its options are scored together.
- "truncate-left": drop tokens from the left of the context of each sequence that is too long, as
  lm-evaluation-harness does. What is scored is never cut, and at least one token stays before it: a question
  whose answer alone does not fit is an error under this policy too.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace
from typing import Any, Literal, NamedTuple, Protocol

from loopscope.errors import LoopscopeError

Scalar = str | int | float | bool | None
_TOGETHER = 64
"""Rows whose texts are encoded together."""


@dataclass(frozen=True, slots=True)
class Sequence:
    """One token sequence with what is scored in it; `targets[i]` is the token after `positions[i]`."""

    token_ids: tuple[int, ...]
    positions: tuple[int, ...]
    targets: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.positions:
            raise LoopscopeError("a sequence has no token to predict: give the solution or option some text")
        for position, target in zip(self.positions, self.targets, strict=True):
            if not 0 <= position < len(self.token_ids) - 1 or self.token_ids[position + 1] != target:
                raise ValueError(f"position {position} does not predict token {target}")


class GivenIds(NamedTuple):
    """A question's token ids as the user gave them, and the text that stands for each scored one."""

    prompt: tuple[int, ...]
    continuations: tuple[tuple[int, ...], ...]
    pieces: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One question as text, before any tokenizer: a solution, or options with the right one's index.

    `context` ends where the scored text begins; `continuations` holds the one solution or the K options. Where the
    options are what stands before one and the same continuation, `leads` holds them: they follow the context and are
    not scored. A row of token ids has `ids`, and texts that are only shown.
    """

    id: str
    source_row: int
    context: str
    continuations: tuple[str, ...]
    answer: int | None = None
    metadata: Mapping[str, Scalar] = field(default_factory=lambda: MappingProxyType({}))
    leads: tuple[str, ...] = ()
    ids: GivenIds | None = None

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """For each continuation what stands between it and the context, and the continuation."""
        return list(zip(self.leads or [""] * len(self.continuations), self.continuations, strict=True))

    @property
    def texts(self) -> list[str]:
        """The solution or the options as they are shown."""
        return [lead + text for lead, text in self.pairs]


@dataclass(frozen=True, slots=True)
class Example:
    """One encoded question: one sequence for a reference solution, K for the options of a choice."""

    id: str
    source_row: int
    prompt: str
    sequences: tuple[Sequence, ...]
    answer: int | None = None
    metadata: Mapping[str, Scalar] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        if self.answer is not None and not 0 <= self.answer < len(self.sequences):
            raise LoopscopeError(
                f"{self.id}: the answer index {self.answer} is not one of its {len(self.sequences)} options"
            )

    @property
    def prediction_count(self) -> int:
        """How many tokens are scored, over all sequences."""
        return sum(len(sequence.positions) for sequence in self.sequences)

    @property
    def longest(self) -> int:
        """The tokens of its longest sequence."""
        return max(len(sequence.token_ids) for sequence in self.sequences)

    @property
    def least(self) -> int:
        """The tokens that must stay of some sequence: what is scored, and one before it."""
        return max(len(sequence.token_ids) - sequence.positions[0] for sequence in self.sequences)


Split = Literal["joint", "separate", "harness", "ids"]


class Encoder(Protocol):
    """Anything that turns text into token ids.

    One that also has `prefix_ids` (Huginn's tokenizer prepends a beginning-of-sequence token) gets them put before
    every sequence, as the model saw its texts in training; without the attribute nothing is added.
    """

    def encode(self, text: str) -> list[int]:
        """The token ids of the text, without special tokens."""


def encode_pair(
    tokenizer: Encoder, context: str, continuation: str, split: Split = "joint", *, special_tokens: bool = True
) -> Sequence:
    """One sequence whose prediction positions cover the continuation.

    An empty context leaves the continuation's first token without a position to predict it from, unless the
    tokenizer has a prefix; that token is then not scored. `special_tokens=False` leaves the tokenizer's prefix out: a
    chat template has written it already.
    """
    prefix: list[int] = list(getattr(tokenizer, "prefix_ids", ())) if special_tokens else []
    if split == "joint":
        bare = context.rstrip(" ")
        context, continuation = bare, context[len(bare) :] + continuation
        ids = prefix + list(tokenizer.encode(context + continuation))
        start = len(prefix) + (len(tokenizer.encode(context)) if context else 0)
    elif split == "harness":
        head, tail = _harness_pair(tokenizer, context, continuation)
        ids, start = head + tail, len(head)
    else:
        head = prefix + (list(tokenizer.encode(context)) if context else [])
        ids, start = head + list(tokenizer.encode(continuation)), len(head)
    return _scored(ids, start, context)


def _scored(ids: Iterable[int], start: int, context: str) -> Sequence:
    """What follows the first `start` ids is scored."""
    ids, first = tuple(ids), max(start, 1)
    if first >= len(ids):
        raise LoopscopeError(f"nothing to predict after {context[-40:]!r}: the solution or option is empty")
    return Sequence(ids, tuple(range(first - 1, len(ids) - 1)), ids[first:])


def _harness_pair(tokenizer: Any, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """Ids of context and continuation as lm-evaluation-harness's Hugging Face model class makes them."""
    first = tokenizer.bos_id if tokenizer.bos_id is not None else next(iter(tokenizer.eos_ids), None)
    if not context:
        ids = list(tokenizer.encode(continuation))
        if first is None:
            raise LoopscopeError("its context is empty, and the tokenizer has no token to begin a text with")
        return (ids[:1], ids[1:]) if ids[:1] == [first] else ([first], ids)
    begins = tokenizer.decode([first]) if first is not None else None

    def encoded(text: str) -> list[int]:
        marked = begins is not None and text.startswith(begins)
        return list(tokenizer.encode(text, special_tokens=not marked))

    bare = context.rstrip()
    head = encoded(bare)
    return head, encoded(context + continuation)[len(head) :]


def _together(tokenizer: Any, rows: Iterable[Row], split: Split) -> Any:
    """A tokenizer for the texts of some rows, each of them encoded once, in threads of the tokenizer's library."""
    if split not in ("joint", "separate") or not hasattr(tokenizer, "encode_batch"):
        return tokenizer
    texts: dict[str, None] = {}
    for row in rows:
        for lead, scored in row.pairs if row.ids is None else ():
            context = row.context + lead
            pair = (context + scored, context.rstrip(" ")) if split == "joint" else (context, scored)
            texts |= dict.fromkeys(pair)
    found = dict(zip(texts, tokenizer.encode_batch(list(texts)), strict=True))
    return SimpleNamespace(encode=found.__getitem__, prefix_ids=getattr(tokenizer, "prefix_ids", ()))


def encode_row(tokenizer: Encoder | None, row: Row, split: Split = "joint", *, special_tokens: bool = True) -> Example:
    """A row's example: one sequence for each of its continuations. Rows of token ids need no tokenizer."""
    if row.ids is not None:
        prompt = row.ids.prompt
        sequences = tuple(_scored(prompt + ids, len(prompt), row.context) for ids in row.ids.continuations)
    else:
        assert tokenizer is not None, "texts need a tokenizer"
        sequences = tuple(
            encode_pair(tokenizer, row.context + lead, text, split, special_tokens=special_tokens)
            for lead, text in row.pairs
        )
    return Example(row.id, row.source_row, row.context, sequences, row.answer, row.metadata)


Kind = Literal["solution", "options"]


@dataclass(frozen=True)
class LoadedTask:
    """Rows of one task, in source order.

    Attributes:
        name: of the task: "gsm8k".
        spec: what loads the same rows again, up to `limit` and `ids`: "gsm8k:train256".
        kind: "solution" or "options".
        split: "test", "train", "validation"; "all" for a file of one's own.
        subset: the named subset, if one was chosen.
        source: the file or the hub's repository and commit.
        source_rows: how many rows the whole split has.
        data_hash: SHA-256 of the whole split's questions, whichever source they came from.
        template: the template's name or path.
        template_hash: SHA-256 of its content.
        encoding: how context and continuation meet, "separate", "joint", "harness" or "ids".
        special_tokens: whether the tokenizer's prefix is put before each sequence; not after a chat template.
        given: whether the rows came as an object of Python, which nobody can load again by name.
        rows: the chosen rows as text.
    """

    name: str
    spec: str
    kind: Kind
    source_rows: int
    data_hash: str
    template: str
    template_hash: str
    encoding: Split
    rows: tuple[Row, ...] = field(repr=False)
    split: str = "all"
    subset: str | None = None
    source: str = "given in Python"
    special_tokens: bool = True
    given: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    def encode(self, tokenizer: Encoder | None = None) -> Iterator[Example]:
        """The rows as examples, one at a time."""
        for start in range(0, len(self.rows), _TOGETHER):
            rows = self.rows[start : start + _TOGETHER]
            encoder = _together(tokenizer, rows, self.encoding)
            for row in rows:
                try:
                    yield self.encode_row(encoder, row)
                except LoopscopeError as error:
                    raise LoopscopeError(f"{self.spec}, question {row.id}: {error}") from error

    def encode_row(self, tokenizer: Encoder | None, row: Row) -> Example:
        """One of its rows as an example."""
        return encode_row(tokenizer, row, self.encoding, special_tokens=self.special_tokens)

    def without_rows(self) -> LoadedTask:
        """What the task is, without its texts: what a worker needs that is handed rows one unit at a time."""
        return dataclasses.replace(self, rows=())


def canonical(content: object) -> bytes:
    """JSON with sorted keys and no spaces, in UTF-8: equal content, equal bytes.

    >>> canonical({"b": 1, "a": "é"}).decode()
    '{"a":"é","b":1}'
    """
    return json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


LengthPolicy = Literal["error", "skip", "truncate-left"]


def fit_lengths(examples: Collection[Example], allowed: int, policy: LengthPolicy) -> list[Example | None]:
    """Each example as the policy lets it through: itself, cut, or None where it is left out.

    Raises:
        LoopscopeError: the policy cannot go on with these examples; the first of them are named.
    """
    long = [example for example in examples if example.longest > allowed]
    listed, remedy = long, ""
    if policy == "error":
        remedy = "; skip them or cut their contexts (policy skip or truncate-left)"
    elif policy == "truncate-left":
        listed = [example for example in long if example.least > allowed]
        remedy = " even without a context; use the policy skip"
    elif len(long) < len(examples):
        listed = []
    if listed:
        first = ", ".join(f"{example.id} ({example.longest} tokens)" for example in listed[:5])
        more = f" and {len(listed) - 5} more" if len(listed) > 5 else ""
        raise LoopscopeError(
            f"{len(listed)} of {len(examples)} questions are longer than {allowed} tokens: {first}{more}{remedy}"
        )
    if policy == "skip":
        return [None if example.longest > allowed else example for example in examples]
    return [_cut(example, allowed) if example.longest > allowed else example for example in examples]


def _cut(example: Example, allowed: int) -> Example:
    cut = []
    for sequence in example.sequences:
        surplus = max(0, len(sequence.token_ids) - allowed)
        positions = tuple(position - surplus for position in sequence.positions)
        cut.append(Sequence(sequence.token_ids[surplus:], positions, sequence.targets))
    return dataclasses.replace(example, sequences=tuple(cut))
