"""Typed access to a source row's fields, with errors that name the place and the remedy."""

from __future__ import annotations

from typing import Any

from loopscope._errors import LoopscopeError
from loopscope.tasks.rows import SourceRow

MOST_OPTIONS = 1_000
"""Options of a question; each is encoded with the whole context."""


def value(row: SourceRow, *names: str) -> Any:
    """The first of `names` that the row has; sources differ in what they call a field."""
    for name in names:
        if row.fields.get(name) is not None:
            return row.fields[name]
    known = ", ".join(sorted(row.fields)) or "none"
    raise LoopscopeError(f"{row.where}: field {names[0]!r} is missing; the row has: {known}")


def text(row: SourceRow, *names: str, empty: bool = False) -> str:
    """A string field; an empty or blank one is an error unless `empty` allows it."""
    found = value(row, *names)
    if not isinstance(found, str):
        raise LoopscopeError(f"{row.where}: field {names[0]!r} must be text, not {kind(found)}")
    if not empty and not found.strip():
        raise LoopscopeError(f"{row.where}: field {names[0]!r} is empty; give it a text or leave the row out")
    check_unicode(row, names[0], found)
    return found


def check_unicode(row: SourceRow, name: str, found: str) -> None:
    """JSON can spell half of a surrogate pair, which no tokenizer and no file can take."""
    try:
        found.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(found[error.start]):04x}"
        raise LoopscopeError(f"{row.where}: field {name!r} holds a broken character ({half}); mend the text") from error


def texts(row: SourceRow, *names: str) -> tuple[str, ...]:
    """A list of two or more non-empty strings."""
    return check_texts(row, names[0], value(row, *names))


def check_texts(row: SourceRow, name: str, found: Any) -> tuple[str, ...]:
    """`found`, once it is known to be a list of non-empty strings, one an option."""
    if not isinstance(found, list) or not all(isinstance(entry, str) for entry in found):
        raise LoopscopeError(f"{row.where}: field {name!r} must be a list of texts, not {kind(found)}")
    if not 2 <= len(found) <= MOST_OPTIONS:
        raise LoopscopeError(f"{row.where}: field {name!r} has {len(found)} entries; a choice has 2 to {MOST_OPTIONS}")
    for number, entry in enumerate(found):
        if not entry.strip():
            raise LoopscopeError(f"{row.where}: option {number} of {name!r} is empty; give it a text")
        check_unicode(row, name, entry)
    return tuple(found)


def option_index(row: SourceRow, found: Any, options: int, name: str = "answer") -> int:
    """An option's number from 0; an integer or, as the hub stores HellaSwag's labels, its decimal digits."""
    if isinstance(found, str) and found.strip().isdecimal() and len(found) < 20:
        found = int(found)
    if isinstance(found, bool) or not isinstance(found, int):
        raise LoopscopeError(
            f"{row.where}: field {name!r} must be the number of the right option (from 0), not {kind(found)}"
        )
    if not 0 <= found < options:
        raise LoopscopeError(
            f"{row.where}: field {name!r} is {found}, but the row has {options} options (0 to {options - 1})"
        )
    return found


def key_index(row: SourceRow, key: str, labels: tuple[str, ...]) -> int:
    """The place of an answer key among the options' labels: "C" among A, B, C, D is 2."""
    if key not in labels:
        raise LoopscopeError(
            f"{row.where}: answer key {key!r} is none of the option labels {', '.join(labels)}; mend the row"
        )
    return labels.index(key)


def kind(found: Any) -> str:
    """A JSON value's type in the words of JSON.

    >>> kind(True), kind(1.5), kind([1]), kind(None)
    ('true/false', 'a number', 'a list', 'null')
    """
    if isinstance(found, bool):
        return "true/false"
    names = ((str, "text"), (int | float, "a number"), (list, "a list"), (dict, "an object"))
    return next((name for types, name in names if isinstance(found, types)), "null")
