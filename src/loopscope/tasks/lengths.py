"""Sequences longer than the model allows: found and named before a pass starts, then kept out or cut.

A model that allows L positions takes sequences of at most L tokens. Policies:

- "error": refuse, naming how many questions are too long and which.
- "skip": leave those questions out. A choice is left out whole, since its options are scored together.
- "truncate-left": drop tokens from the left of the context of each sequence that is too long, as
  lm-evaluation-harness does. What is scored is never cut, and at least one token stays before it: a question
  whose answer alone does not fit is an error under this policy too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Literal, NamedTuple, get_args

from loopscope.errors import LoopscopeError, choice
from loopscope.tasks.encoding import Example, Sequence

LengthPolicy = Literal["error", "skip", "truncate-left"]


class LongExample(NamedTuple):
    """A question with a sequence that does not fit: its longest, and the most tokens that must stay."""

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
        choice("long", policy, get_args(LengthPolicy))
        uncuttable = [example for example in self.too_long if example.needed > self.allowed]
        if policy == "error" and self.too_long:
            remedy = "skip them or cut their contexts (policy skip or truncate-left)"
            raise LoopscopeError(f"{self.describe(self.too_long)}; {remedy}")
        if policy == "truncate-left" and uncuttable:
            raise LoopscopeError(f"{self.describe(uncuttable)} even without a context; use the policy skip")

    def describe(self, listed: Collection[LongExample] | None = None) -> str:
        """One line: how many do not fit, and the first of them."""
        listed = self.too_long if listed is None else listed
        if not listed:
            return f"all {self.examples} questions fit into {self.allowed} tokens (longest {self.longest})"
        first = ", ".join(f"{example.id} ({example.tokens} tokens)" for example in islice(listed, 5))
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
    surplus = max(0, len(sequence.token_ids) - allowed)
    positions = tuple(position - surplus for position in sequence.positions)
    return Sequence(sequence.token_ids[surplus:], positions, sequence.targets)
