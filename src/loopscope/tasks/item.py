"""A question between its source row and its wording: the same fields whichever source it came from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from loopscope.tasks.example import Scalar

NO_METADATA: Mapping[str, Scalar] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Item:
    """One question, normalised.

    Attributes:
        index: source row, from 0.
        where: the place to show in an error.
        fields: the texts that a template may name.
        options: the answer options in source order; empty for a reference solution.
        answer: the right option's number, None for a reference solution.
        id: the name of the question in records.
        metadata: what else is worth keeping, e.g. the source's own id.
    """

    index: int
    where: str
    fields: dict[str, str]
    options: tuple[str, ...] = ()
    answer: int | None = None
    id: str = ""
    metadata: Mapping[str, Scalar] = field(default_factory=lambda: NO_METADATA)


@dataclass
class DataHash:
    """SHA-256 over the questions of a split, in order: `data_hash` in a run's manifest.

    It covers what is asked and what is right (fields, options, answer), not the file it came from: the hub's
    copy and a local one give the same hash where they hold the same questions.
    """

    _digest: hashlib._Hash = field(default_factory=hashlib.sha256)

    def add(self, item: Item) -> None:
        """Take in the next question."""
        content = [item.index, item.fields, item.options, item.answer]
        self._digest.update(canonical(content) + b"\n")

    def hexdigest(self) -> str:
        """The hash of what was added so far."""
        return self._digest.hexdigest()


def canonical(content: object) -> bytes:
    """JSON with sorted keys and no spaces, in UTF-8: equal content, equal bytes.

    >>> canonical({"b": 1, "a": "é"}).decode()
    '{"a":"é","b":1}'
    """
    return json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
