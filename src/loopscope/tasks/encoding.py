"""From context and continuation text to token ids, with the split between them at a token boundary.

Two ways, because a tokenizer need not put a boundary where the text has one:

- `joint`: encode context + continuation as one text and the context alone; what follows the context's number of
  tokens is the continuation. Blanks at the end of the context first move over to the continuation, since most
  tokenizers glue a blank to the word after it. The model then reads the text exactly as it would be written.
- `separate`: encode the two alone and put them one after the other. The boundary is always clean, at the price of
  a tokenization that the whole text would not get.
"""

from __future__ import annotations

from typing import Literal, Protocol

from loopscope._errors import LoopscopeError
from loopscope.tasks.example import Example, Row, Sequence

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
