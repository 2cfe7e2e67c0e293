"""Rows of token ids: taken exactly as they are, and shown through the user's `decode` or the run's tokenizer.

A row has `prompt_ids` and `solution_ids`, or `prompt_ids`, `options_ids` (a list for each option) and `answer`. Nothing
is put before, between or after them.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from loopscope.errors import LoopscopeError, index, setting, shown
from loopscope.tasks.encoding import GivenIds, Kind, LoadedTask, Row, Split, canonical
from loopscope.tasks.source_rows import MOST_OPTIONS, SourceRow, json_kind, option_index, row_id, value

LARGEST_ID = 2**31 - 1
"""The largest token id that a row may hold."""
MOST_IDS = 1_000_000
"""Token ids of a question, its prompt counted once an option."""
AS_NUMBERS = "token ids"
"""The template of a task whose ids nobody decodes: a token is shown as its number in brackets."""
DECODED = "decoded token ids"


def kind_of_ids(fields: Iterable[str]) -> Kind | None:
    """What kind of question a row of ids is, by its fields; None where it holds texts."""
    names = set(fields)
    if {"prompt_ids", "solution_ids"} <= names:
        return "solution"
    return "options" if {"prompt_ids", "options_ids", "answer"} <= names else None


class IdRows:
    """Source rows to rows of ids, one at a time, hashed on the way.

    Attributes:
        kind: "solution" or "options".
        template: how a token is shown.
    """

    encoding: Split = "ids"

    def __init__(self, kind: Kind, decode: object = None) -> None:
        self.kind = kind
        self.template = AS_NUMBERS if decode is None else DECODED
        self._pieces = Pieces(decode)
        self._seen: dict[str, str] = {}
        self._digest = hashlib.sha256()

    def read(self, row: SourceRow) -> Row:
        """The next row, checked."""
        name = row_id(row, self._seen)
        prompt, answer = _ids(row, "prompt_ids", value(row, "prompt_ids")), None
        if self.kind == "solution":
            continuations: tuple[tuple[int, ...], ...] = (_ids(row, "solution_ids", value(row, "solution_ids")),)
        else:
            listed = value(row, "options_ids")
            if not isinstance(listed, list) or not 2 <= len(listed) <= MOST_OPTIONS:
                raise LoopscopeError(
                    f"{row.where}: field 'options_ids' must hold 2 to {MOST_OPTIONS} lists of token ids, one an option"
                )
            continuations = tuple(_ids(row, "options_ids", entry) for entry in listed)
            answer = option_index(row, value(row, "answer"), len(continuations))
        size = sum(len(prompt) + len(ids) for ids in continuations)
        if size > MOST_IDS:
            raise LoopscopeError(
                f"{row.where}: {size} token ids, with the prompt once an option; a question has at most {MOST_IDS}"
            )
        self._digest.update(canonical([row.index, prompt, continuations, answer]) + b"\n")
        return shown_row(Row(name, row.index, "", (), answer, ids=GivenIds(prompt, continuations, ())), self._pieces)

    def word(self, row: Row) -> Row:
        """The row itself: ids have no other wording."""
        return row

    @property
    def data_hash(self) -> str:
        """SHA-256 of the ids and answers of all rows so far."""
        return self._digest.hexdigest()

    @property
    def template_hash(self) -> str:
        """SHA-256 of how they were shown, so that one run does not mix two ways."""
        known = sorted(self._pieces.known.items()) if self.template == DECODED else None
        return hashlib.sha256(canonical(["token ids", known])).hexdigest()


class Pieces:
    """Text for token ids, each asked for once.

    `decode` is a function of one id or of a list of ids, a list or mapping of texts by id, or an object with such a
    function of that name, as tokenizers are.
    """

    def __init__(self, decode: object) -> None:
        self.known: dict[int, str] = {}
        self._decode = _function(decode)

    def of(self, ids: Iterable[int], where: str) -> tuple[str, ...]:
        """The text of each id."""
        return tuple(self._piece(number, where) for number in ids)

    def _piece(self, number: int, where: str) -> str:
        if number not in self.known:
            try:
                found = self._decode(number)
            except Exception as error:  # the user's own function
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:120]
                raise LoopscopeError(f"{where}: decode= fails on the token id {number} ({reason})") from error
            if not isinstance(found, str):
                raise LoopscopeError(
                    f"{where}: decode= gives {shown(found)} for the token id {number}; it must give a text"
                )
            # A text that no file can hold would stop the run at its end.
            self.known[number] = found.encode("utf-8", "replace").decode()
        return self.known[number]


def _function(decode: Any) -> Callable[[int], Any]:
    if decode is None:
        return lambda number: f"[{number}]"
    if isinstance(decode, Mapping | list | tuple):
        return lambda number: decode[number]
    call = getattr(decode, "decode", decode)
    if not callable(call) or isinstance(decode, str | bytes):
        raise LoopscopeError(
            f"{setting('decode', decode)} cannot turn a token id into text: give a function, a list of texts or a"
            " tokenizer"
        )

    def decoded(number: int) -> Any:
        try:
            return call(number)
        except TypeError:
            return call([number])

    return decoded


def shown_row(row: Row, pieces: Pieces) -> Row:
    """A row of ids with the texts that stand for them."""
    assert row.ids is not None
    where = f"question {row.id}"
    scored = tuple(pieces.of(ids, where) for ids in row.ids.continuations)
    return dataclasses.replace(
        row,
        context="".join(pieces.of(row.ids.prompt, where)),
        continuations=tuple("".join(texts) for texts in scored),
        ids=row.ids._replace(pieces=scored),
    )


def shown_through(task: LoadedTask, decode: object) -> LoadedTask:
    """The same task, its ids shown through a tokenizer where the user gave no `decode`."""
    if task.template != AS_NUMBERS or decode is None:
        return task
    pieces = Pieces(decode)
    return dataclasses.replace(task, rows=tuple(shown_row(row, pieces) for row in task.rows))


def check_vocabulary(task: LoadedTask, vocabulary_size: int, model: str) -> None:
    """Refuse ids that the model has no embedding for."""
    for row in task.rows if task.encoding == "ids" else ():
        assert row.ids is not None
        largest = max(max(ids) for ids in (row.ids.prompt, *row.ids.continuations))
        if largest >= vocabulary_size:
            raise LoopscopeError(
                f"{task.spec}, question {row.id}: token id {largest} is beyond the vocabulary of {model}, which has"
                f" {vocabulary_size} tokens (0 to {vocabulary_size - 1})"
            )


def _ids(row: SourceRow, name: str, found: Any) -> tuple[int, ...]:
    if not isinstance(found, list):
        raise LoopscopeError(f"{row.where}: field {name!r} must be a list of token ids, not {json_kind(found)}")
    if not found:
        remedy = "put the token there that begins a text" if name == "prompt_ids" else "leave the row out"
        raise LoopscopeError(f"{row.where}: field {name!r} is empty; {remedy}")
    for entry in found:
        number = index(entry)
        if number is None or not 0 <= number <= LARGEST_ID:
            raise LoopscopeError(
                f"{row.where}: field {name!r} holds {shown(entry)}; token ids are whole numbers from 0 to {LARGEST_ID}"
            )
    return tuple(int(entry) for entry in found)
