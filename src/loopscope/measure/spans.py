"""Where each reference token stands in the text that it came from, by the tokenizer's own offsets."""

from __future__ import annotations

from typing import Any

from loopscope.measure.batches import Span
from loopscope.tasks.encoding import Split
from loopscope.tasks.example import Example, Row


def token_spans(tokenizer: Any, row: Row, example: Example, split: Split) -> tuple[tuple[Span, ...], ...] | None:
    """For each sequence the characters of its reference or option text that each scored token covers.

    A token that begins before the text (a blank that belongs to the context) begins at 0. Tokens that share one
    character, as the bytes of an emoji do, share its place. None for a tokenizer without offsets.
    """
    backend = getattr(tokenizer, "backend", None)
    if backend is None:
        return None
    found = []
    for text, sequence in zip(row.continuations, example.sequences, strict=True):
        lead = row.context if split == "joint" else ""
        offsets = backend.encode(lead + text, add_special_tokens=False).offsets[-len(sequence.targets) :]
        found.append(tuple(Span(max(start - len(lead), 0), max(end - len(lead), 0)) for start, end in offsets))
    return tuple(found)
