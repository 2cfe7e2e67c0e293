"""Items: a question between its source row and its wording, with the same fields whichever source it came from.

A benchmark's columns are listed in `benchmarks.toml`. A user's own data file has `prompt` + `solution`, or `context` +
`options` + `answer`, where `answer` is the right option's number from 0. `id` may name a row; ids must differ. Other
fields are allowed: a template given with the task may use any text field of the row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from loopscope.errors import LoopscopeError
from loopscope.tasks.encoding import Kind, Scalar, canonical
from loopscope.tasks.source_rows import (
    SourceRow,
    check_texts,
    check_unicode,
    find,
    json_kind,
    option_index,
    text,
    texts,
    value,
)

NO_METADATA: Mapping[str, Scalar] = MappingProxyType({})
MOST_ID = 200
"""Characters of a row's own name, which stands in every record of it."""


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


@dataclass(frozen=True)
class Columns:
    """Which columns of a source row hold what; see `benchmarks.toml`."""

    columns: Mapping[str, tuple[str, ...]]
    empty: tuple[str, ...] = ()
    options: str | tuple[str, ...] | None = None
    choices: tuple[str, ...] | None = None
    answer: tuple[str, ...] = ()
    source_id: str | None = None

    def read(self, row: SourceRow, name: str) -> Item:
        """The question of a row, checked."""
        fields = {key: text(row, *names, empty=key in self.empty) for key, names in self.columns.items()}
        found = find(row, self.source_id) if self.source_id is not None else None
        metadata = NO_METADATA if found is None else MappingProxyType({"source_id": str(found)})
        if found is not None and self.source_id is not None:
            check_unicode(row, self.source_id, str(found))
        if not self.answer:
            return Item(row.index, row.where, fields, id=name, metadata=metadata)
        options, labels = self._options(row)
        right = value(row, *self.answer)
        if isinstance(right, bool) and isinstance(self.options, tuple):
            right = int(right)
        if labels:
            if right not in labels:
                listed = ", ".join(labels)
                raise LoopscopeError(
                    f"{row.where}: answer key {right!r} is none of the option labels {listed}; mend the row"
                )
            answer = labels.index(right)
        else:
            answer = option_index(row, right, len(options), self.answer[-1])
        return Item(row.index, row.where, fields, options, answer, name, metadata)

    def _options(self, row: SourceRow) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The options, and their labels where the answer names one."""
        if self.choices is not None:
            return _labelled(row, value(row, *self.choices))
        if isinstance(self.options, str):
            return texts(row, self.options), ()
        assert self.options is not None
        return tuple(text(row, one[1:-1]) if one.startswith("{") else one for one in self.options), ()


def _labelled(row: SourceRow, choices: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if isinstance(choices, list) and all(isinstance(choice, dict) for choice in choices):
        choices = {key: [choice.get(key) for choice in choices] for key in ("label", "text")}
    if not isinstance(choices, dict) or not {"label", "text"} <= choices.keys():
        raise LoopscopeError(f"{row.where}: field 'choices' must hold 'label' and 'text', not {json_kind(choices)}")
    labels, options = (check_texts(row, f"choices.{key}", choices[key]) for key in ("label", "text"))
    if len(labels) != len(options) or len(set(labels)) < len(labels):
        raise LoopscopeError(
            f"{row.where}: {len(options)} choices with the labels {', '.join(labels)}: give each a label of its own"
        )
    return options, labels


def own_normaliser(names: Iterable[str], kind: Kind) -> Callable[[SourceRow], Item]:
    """A function from a user's row to its question that checks the fields a template names, and ids."""
    listed = {name: (name,) for name in sorted(names)}
    columns = Columns(listed) if kind == "solution" else Columns(listed, options="options", answer=("answer",))
    seen: dict[str, str] = {}
    return lambda row: columns.read(row, row_id(row, seen))


def row_id(row: SourceRow, seen: dict[str, str]) -> str:
    """The row's own `id`, or its number; `seen` keeps those of the rows before it."""
    found = row.fields.get("id")
    if found is None:
        found = f"row-{row.index}"
    if isinstance(found, bool) or not isinstance(found, str | int):
        raise LoopscopeError(f"{row.where}: field 'id' must be a text or a whole number, not {json_kind(found)}")
    name = str(found)
    if not 0 < len(name) <= MOST_ID:
        raise LoopscopeError(f"{row.where}: field 'id' has {len(name)} characters; give it 1 to {MOST_ID}")
    check_unicode(row, "id", name)
    if name in seen:
        raise LoopscopeError(f"{row.where}: id {name!r} is already used at {seen[name]}; give each row its own")
    seen[name] = row.where
    return name
