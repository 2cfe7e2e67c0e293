"""Items: a question between its source row and its wording, with the same fields whichever source it came from.

One function per benchmark makes the item of a source row. Copies name the same things differently (the hub stores
HellaSwag's label as text, older CommonsenseQA files nest the question under a stem): what comes out is the same.

A user's own data file has `prompt` + `solution`, or `context` + `options` + `answer`, where `answer` is the right
option's number from 0. `id` may name a row; ids must differ. Other fields are allowed: a template given with the task
may use any text field of the row.
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
    json_kind,
    key_index,
    option_index,
    text,
    texts,
    value,
)

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


def gsm8k(row: SourceRow) -> Item:
    """`answer` is the whole published solution, calculator marks (<<…>>) and the `####` line included."""
    return Item(row.index, row.where, {"question": text(row, "question"), "solution": text(row, "answer", "solution")})


def math500(row: SourceRow) -> Item:
    """`solution` is the whole published derivation; `answer` (its boxed end) is not used."""
    fields = {"problem": text(row, "problem", "question"), "solution": text(row, "solution")}
    return Item(row.index, row.where, fields, metadata=_source_id(row, "unique_id"))


def hellaswag(row: SourceRow) -> Item:
    """Four endings; `ctx_b` is empty in the WikiHow half."""
    fields = {
        "activity_label": text(row, "activity_label"),
        "ctx_a": text(row, "ctx_a"),
        "ctx_b": text(row, "ctx_b", empty=True),
    }
    endings = texts(row, "endings")
    answer = option_index(row, value(row, "label"), len(endings), "label")
    return Item(row.index, row.where, fields, endings, answer)


def arc(row: SourceRow) -> Item:
    """Three to five options with letters or numbers for labels."""
    question, labels, options = _question_with_choices(row)
    answer = key_index(row, text(row, "answerKey"), labels)
    return Item(row.index, row.where, {"question": question}, options, answer, metadata=_source_id(row, "id"))


def commonsense_qa(row: SourceRow) -> Item:
    """Five lettered options."""
    return arc(row)


def piqa(row: SourceRow) -> Item:
    """Two solutions of one goal."""
    options = (text(row, "sol1"), text(row, "sol2"))
    answer = option_index(row, value(row, "label"), 2, "label")
    return Item(row.index, row.where, {"goal": text(row, "goal")}, options, answer)


def boolq(row: SourceRow) -> Item:
    """A yes/no question about a passage; option 0 is no, option 1 is yes."""
    found = value(row, "answer", "label")
    if not isinstance(found, bool) and found not in (0, 1):
        raise LoopscopeError(f"{row.where}: field 'answer' must be true or false, not {json_kind(found)}")
    fields = {"passage": text(row, "passage"), "question": text(row, "question")}
    return Item(row.index, row.where, fields, ("no", "yes"), int(found))


def _question_with_choices(row: SourceRow) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    question = value(row, "question")
    if isinstance(question, dict):
        nested = SourceRow(row.index, row.where, question)
        return text(nested, "stem"), *_choices(nested)
    return text(row, "question"), *_choices(row)


def _choices(row: SourceRow) -> tuple[tuple[str, ...], tuple[str, ...]]:
    choices: Any = value(row, "choices")
    if isinstance(choices, list) and all(isinstance(choice, dict) for choice in choices):
        choices = {key: [choice.get(key) for choice in choices] for key in ("label", "text")}
    if not isinstance(choices, dict):
        raise LoopscopeError(f"{row.where}: field 'choices' must hold 'label' and 'text', not {json_kind(choices)}")
    nested = SourceRow(row.index, row.where, choices)
    labels = check_texts(row, "choices.label", value(nested, "label"))
    options = check_texts(row, "choices.text", value(nested, "text"))
    if len(labels) != len(options):
        raise LoopscopeError(f"{row.where}: {len(labels)} choice labels for {len(options)} choice texts")
    if len(set(labels)) < len(labels):
        raise LoopscopeError(f"{row.where}: two choices have the same label ({', '.join(labels)}); mend the row")
    return labels, options


def _source_id(row: SourceRow, name: str) -> Mapping[str, Scalar]:
    found = row.fields.get(name)
    if found is None:
        return NO_METADATA
    check_unicode(row, name, str(found))
    return MappingProxyType({"source_id": str(found)})


MOST_ID = 200
"""Characters of a row's own name, which stands in every record of it."""


def own_normaliser(names: Iterable[str], kind: Kind) -> Callable[[SourceRow], Item]:
    """A function from a user's row to its question that checks the fields a template names, and ids."""
    listed = sorted(names)
    seen: dict[str, str] = {}

    def normalise(row: SourceRow) -> Item:
        name = row_id(row, seen)
        fields = {field: text(row, field) for field in listed}
        if kind == "solution":
            return Item(row.index, row.where, fields, id=name)
        options = texts(row, "options")
        return Item(row.index, row.where, fields, options, option_index(row, value(row, "answer"), len(options)), name)

    return normalise


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
