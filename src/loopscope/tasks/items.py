"""Items: a question between its source row and its wording, with the same fields whichever source it came from.

A benchmark's columns are listed in `benchmarks.toml`. A user's own data file has `prompt` + `solution`, or `context` +
`options` + `answer`, where `answer` is the right option's number from 0. `id` may name a row; ids must differ. Other
fields are allowed: a template given with the task may use any text field of the row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ConfigDict

from loopscope.errors import LoopscopeError
from loopscope.tasks.encoding import Scalar
from loopscope.tasks.source_rows import (
    SourceRow,
    check_texts,
    check_unicode,
    find,
    json_kind,
    option_index,
    text,
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


class Columns(BaseModel):
    """Which columns of a source row hold what; see `benchmarks.toml`."""

    model_config = ConfigDict(frozen=True)

    columns: dict[str, tuple[str, ...]]
    empty: tuple[str, ...] = ()
    options: str | tuple[str, ...] | None = None
    choices: tuple[str, ...] | None = None
    answer: tuple[str, ...] = ()
    source_id: str | None = None

    def read(self, row: SourceRow, name: str) -> Item:
        """The question of a row, checked."""
        fields = {key: text(row, *names, empty=key in self.empty) for key, names in self.columns.items()}
        found = None if self.source_id is None else find(row, self.source_id)
        metadata = NO_METADATA if found is None else MappingProxyType({"source_id": str(found)})
        check_unicode(row, self.source_id or "", str(found))
        if not self.answer:
            return Item(row.index, row.where, fields, id=name, metadata=metadata)
        options, labels = self._options(row)
        right = value(row, *self.answer)
        if labels:
            if right not in labels:
                listed = ", ".join(labels)
                raise LoopscopeError(
                    f"{row.where}: answer key {right!r} is none of the option labels {listed}; mend the row"
                )
            right = labels.index(right)
        elif isinstance(right, bool) and isinstance(self.options, tuple):
            right = int(right)
        answer = option_index(row, right, len(options), self.answer[-1])
        return Item(row.index, row.where, fields, options, answer, name, metadata)

    def _options(self, row: SourceRow) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The options, and their labels where the answer names one."""
        if self.choices is not None:
            return _labelled(row, value(row, *self.choices))
        if isinstance(self.options, str):
            return check_texts(row, self.options, value(row, self.options)), ()
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
