"""What a model is asked: token ids, the positions whose logits are scored, and their targets.

A prediction position p is the place whose logits predict token p + 1. Only tokens of the solution or of an
option are predicted; the prompt is context.

From context and continuation text to token ids, with the split between them at a token boundary.

Two ways, because a tokenizer need not put a boundary where the text has one:

- `joint`: encode context + continuation as one text and the context alone; what follows the context's number of
  tokens is the continuation. Blanks at the end of the context first move over to the continuation, since most
  tokenizers glue a blank to the word after it. The model then reads the text exactly as it would be written.
- `separate`: encode the two alone and put them one after the other. The boundary is always clean, at the price of
  a tokenization that the whole text would not get.

Sequences longer than the model allows: found and named before a pass starts, then kept out or cut.

A model that allows L positions takes sequences of at most L tokens. Policies:

- "error": refuse, naming how many questions are too long and which.
- "skip": leave those questions out. A choice is left out whole, since its options are scored together.
- "truncate-left": drop tokens from the left of the context of each sequence that is too long, as
  lm-evaluation-harness does. What is scored is never cut, and at least one token stays before it: a question
  whose answer alone does not fit is an error under this policy too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol, get_args

from loopscope.errors import LoopscopeError

Scalar = str | int | float | bool | None


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


@dataclass(frozen=True, slots=True)
class Row:
    """One question as text, before any tokenizer: a solution, or options with the right one's index.

    `context` ends where the scored text begins; `continuations` holds the one solution or the K options.
    """

    id: str
    source_row: int
    context: str
    continuations: tuple[str, ...]
    answer: int | None = None
    metadata: Mapping[str, Scalar] = field(default_factory=lambda: MappingProxyType({}))


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


Split = Literal["joint", "separate"]


class Encoder(Protocol):
    """Anything that turns text into token ids.

    One that also has `prefix_ids` (Huginn's tokenizer prepends a beginning-of-sequence token) gets them put before
    every sequence, as the model saw its texts in training; without the attribute nothing is added.
    """

    def encode(self, text: str) -> list[int]:
        """The token ids of the text, without special tokens."""
        ...


def encode_pair(tokenizer: Encoder, context: str, continuation: str, split: Split = "joint") -> Sequence:
    """One sequence whose prediction positions cover the continuation.

    An empty context leaves the continuation's first token without a position to predict it from, unless the
    tokenizer has a prefix; that token is then not scored.
    """
    prefix: list[int] = list(getattr(tokenizer, "prefix_ids", ()))
    if split == "joint":
        bare = context.rstrip(" ")
        context, continuation = bare, context[len(bare) :] + continuation
        ids = prefix + list(tokenizer.encode(context + continuation))
        start = len(prefix) + (len(tokenizer.encode(context)) if context else 0)
    else:
        head = prefix + (list(tokenizer.encode(context)) if context else [])
        ids, start = head + list(tokenizer.encode(continuation)), len(head)
    first = max(start, 1)
    if first >= len(ids):
        raise LoopscopeError(f"nothing to predict after {context[-40:]!r}: the solution or option is empty")
    return Sequence(tuple(ids), tuple(range(first - 1, len(ids) - 1)), tuple(ids[first:]))


def encode_row(tokenizer: Encoder, row: Row, split: Split = "joint") -> Example:
    """A row's example: one sequence for each of its continuations."""
    sequences = tuple(encode_pair(tokenizer, row.context, text, split) for text in row.continuations)
    return Example(row.id, row.source_row, row.context, sequences, row.answer, row.metadata)


Kind = Literal["solution", "options"]


class Task(Protocol):
    """A benchmark: `solution` tasks score one reference text, `options` tasks K alternatives."""

    @property
    def name(self) -> str:
        """The name on the command line."""
        ...

    @property
    def kind(self) -> Kind:
        """How its examples are scored."""
        ...

    def rows(self, split: str, limit: int | None = None, ids: Iterable[str] | None = None) -> Iterator[Row]:
        """The rows of a split in source order: the first `limit`, or those with the given ids."""
        ...

    def encode(
        self, tokenizer: Encoder, split: str, limit: int | None = None, ids: Iterable[str] | None = None
    ) -> Iterator[Example]:
        """The same rows, encoded."""
        ...


LengthPolicy = Literal["error", "skip", "truncate-left"]


class LongExample(NamedTuple):
    """A question with a sequence that does not fit: its longest, and the longest stretch that must stay."""

    id: str
    source_row: int
    tokens: int
    needed: int


@dataclasses.dataclass(frozen=True)
class LengthSurvey:
    """The lengths of a task's sequences against what a model allows.

    Attributes:
        allowed: positions of the model.
        examples: questions looked at.
        longest: tokens of the longest sequence.
        too_long: the questions that do not fit, in source order.
    """

    allowed: int
    examples: int
    longest: int
    too_long: tuple[LongExample, ...]

    def check(self, policy: LengthPolicy) -> None:
        """Raise if the policy cannot go on with these questions."""
        if policy not in get_args(LengthPolicy):
            raise LoopscopeError(f"length policy {policy!r} is not known; choose {', '.join(get_args(LengthPolicy))}")
        uncuttable = tuple(example for example in self.too_long if example.needed > self.allowed)
        if policy == "error" and self.too_long:
            raise LoopscopeError(
                f"{self.describe(self.too_long)}; skip them or cut their contexts (policy skip or truncate-left)"
            )
        if policy == "truncate-left" and uncuttable:
            raise LoopscopeError(f"{self.describe(uncuttable)} even without a context; use the policy skip")

    def describe(self, listed: tuple[LongExample, ...] | None = None) -> str:
        """One line: how many do not fit, and the first of them."""
        listed = self.too_long if listed is None else listed
        if not listed:
            return f"all {self.examples} questions fit into {self.allowed} tokens (longest {self.longest})"
        first = ", ".join(f"{example.id} ({example.tokens} tokens)" for example in listed[:5])
        more = f" and {len(listed) - 5} more" if len(listed) > 5 else ""
        return f"{len(listed)} of {self.examples} questions are longer than {self.allowed} tokens: {first}{more}"


def survey_lengths(examples: Iterable[Example], allowed: int) -> LengthSurvey:
    """Look at every example once; nothing is kept but the names of those that do not fit."""
    count = longest = 0
    too_long: list[LongExample] = []
    for example in examples:
        count += 1
        tokens = max(len(sequence.token_ids) for sequence in example.sequences)
        longest = max(longest, tokens)
        if tokens > allowed:
            needed = max(len(sequence.token_ids) - sequence.positions[0] for sequence in example.sequences)
            too_long.append(LongExample(example.id, example.source_row, tokens, needed))
    return LengthSurvey(allowed, count, longest, tuple(too_long))


def fit_length(example: Example, allowed: int, policy: LengthPolicy) -> Example | None:
    """The example as the policy lets it through: itself, cut, or None when it is skipped."""
    if all(len(sequence.token_ids) <= allowed for sequence in example.sequences):
        return example
    if policy == "skip":
        return None
    survey_lengths([example], allowed).check(policy)
    return dataclasses.replace(example, sequences=tuple(_cut(sequence, allowed) for sequence in example.sequences))


def _cut(sequence: Sequence, allowed: int) -> Sequence:
    surplus = len(sequence.token_ids) - allowed
    if surplus <= 0:
        return sequence
    positions = tuple(position - surplus for position in sequence.positions)
    return Sequence(sequence.token_ids[surplus:], positions, sequence.targets)
