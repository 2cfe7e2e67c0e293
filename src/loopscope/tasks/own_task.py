"""`Task`: rows given in Python, as texts or token ids, or as a data set of Hugging Face `datasets`; rows of token ids.

The rows are those of a data file (`source_rows`), so everything that reads a file reads them; what identifies
such a task in a run is the hash of its rows and of how they are worded.

A row of token ids has `prompt_ids` and `solution_ids`, or `prompt_ids`, `options_ids` (a list for each option) and
`answer`. Nothing is put before, between or after them: they are taken exactly as they are, and shown through the user's
`decode` or the run's tokenizer.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from loopscope.errors import LoopscopeError, index, setting, shown, text
from loopscope.tasks.encoding import GivenIds, Kind, LoadedTask, Row, Split, canonical
from loopscope.tasks.known_tasks import embedded_name, find_benchmark
from loopscope.tasks.source_rows import (
    MOST_OPTIONS,
    MOST_SOURCE_ROWS,
    SourceRow,
    json_kind,
    option_index,
    row_id,
    value,
)  # fmt: skip
from loopscope.tasks.template import Template, parse_template, read_template

Rows = Iterable[Mapping[str, Any]]
Ids = Iterable[int]
LARGEST_ID = 2**31 - 1
"""The largest token id that a row may hold."""
MOST_IDS = 1_000_000
"""Token ids of a question, its prompt counted once an option."""
AS_NUMBERS = "token ids"
"""The template of a task whose ids nobody decodes: a token is shown as its number in brackets."""
DECODED = "decoded token ids"


@dataclass(frozen=True, eq=False, repr=False)
class Task:
    """A task made in Python: give it to `measure` next to the names of others.

    Attributes:
        name: what the run's records call it.
        rows: its rows, with the fields of a task file.
        train: rows that few-shot examples are taken from; without any, the other rows of the task.
        template: how a row is worded; None is as for a file with the same fields.
        decode: text for token ids, to show them.
    """

    name: str
    rows: tuple[Mapping[str, Any], ...]
    train: tuple[Mapping[str, Any], ...] = ()
    template: Template | None = None
    decode: Any = None

    def __post_init__(self) -> None:
        name = text("name", self.name)
        if find_benchmark(name) or embedded_name(name):
            raise LoopscopeError(f"{name} is a task of loopscope; give yours another {setting('name')}")
        if bad := next((mark for mark in "=:,/" if mark in name), None):
            raise LoopscopeError(f"{setting('name', name)} holds {bad!r}: use letters, digits, dashes")

    def __repr__(self) -> str:
        train = f", {len(self.train)} train rows" if self.train else ""
        return f"Task({self.name!r}, {len(self.rows)} rows{train})"

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def from_rows(
        cls,
        rows: Rows,
        *,
        name: str = "rows",
        fields: Mapping[str, str] | None = None,
        template: Any = None,
        train: Rows = (),
        decode: Any = None,
    ) -> Task:
        """A task of rows: mappings with the fields of a line of a task file.

        Args:
            rows: with `prompt` and `solution`; or `prompt` (or `context`), `options` and `answer`; or `prompt_ids` and
                `solution_ids`; or `prompt_ids`, `options_ids` and `answer`. With a template, whatever it names.
            name: what the run's records call the task.
            fields: where the rows call these fields otherwise: {"prompt": "question", "options": "choices.text"}.
            template: a template file, or its content as a mapping.
            train: rows for few-shot examples; without any, the other rows of the task.
            decode: text for token ids, to show them: a function of one id, a list of texts, a tokenizer.

        Raises:
            LoopscopeError: one line for whatever is wrong with a row, when the task is loaded.
        """
        if isinstance(template, Mapping):
            template = parse_template(dict(template), "given in Python")
        elif template is not None and not isinstance(template, Template):
            template = read_template(text("template", template))
        return cls(name, _listed(rows, "rows", fields), _listed(train, "train", fields), template, decode)

    @classmethod
    def from_ids(
        cls,
        prompts: Iterable[Ids],
        solutions: Iterable[Ids] | None = None,
        *,
        options: Iterable[Iterable[Ids]] | None = None,
        answers: Iterable[int] | None = None,
        decode: Any = None,
        name: str = "ids",
    ) -> Task:
        """A task of token ids, which reach the model exactly as they are here.

        Args:
            prompts: token ids of each prompt.
            solutions: token ids of each reference solution; or else `options` and `answers`.
            options: for each prompt the token ids of each option.
            answers: the number of the right option of each prompt, from 0.
            decode: text for token ids, to show them: a function of one id, a list of texts, a tokenizer; without it
                they are shown through `tokenizer=`, or as numbers.
            name: what the run's records call the task.
        """
        if (solutions is None) is (options is None) or (options is None) is not (answers is None):
            raise LoopscopeError(f"give {setting('solutions')}, or {setting('options')} with {setting('answers')}")
        columns: dict[str, Any] = {"prompt_ids": prompts}
        columns |= {"solution_ids": solutions} if options is None else {"options_ids": options, "answer": answers}
        listed = {}
        for field, values in columns.items():
            plain = _plain(values)
            if isinstance(plain, str | bytes | Mapping) or not isinstance(plain, Iterable):
                raise LoopscopeError(f"{field} must be a list with an entry for each question, not {shown(values)}")
            listed[field] = [_plain(entry) for entry in _bounded(plain)]
        if len({len(values) for values in listed.values()}) > 1:
            counts = ", ".join(f"{len(values)} {field}" for field, values in listed.items())
            raise LoopscopeError(f"the columns of the task {name!r} are not equally long: {counts}")
        rows = [dict(zip(listed, values, strict=True)) for values in zip(*listed.values(), strict=True)]
        task = cls(name, tuple(rows), decode=decode)
        reader = IdRows("solution" if options is None else "options")
        for row in task.source_rows():
            reader.read(row)
        return task

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        *,
        split: str | None = None,
        name: str | None = None,
        fields: Mapping[str, str] | None = None,
        template: Any = None,
        train: Any = None,
        decode: Any = None,
    ) -> Task:
        """A task of a `datasets.Dataset`, or of one split of a `DatasetDict`, whose train split gives examples.

        Args:
            dataset: the data set; columns as in `from_rows`.
            split: which one of a `DatasetDict`.
            name: what the run's records call the task; by default the data set's own name.
            fields: as in `from_rows`.
            template: as in `from_rows`.
            train: a data set for few-shot examples.
            decode: as in `from_rows`.
        """
        if isinstance(dataset, Mapping):
            if split not in dataset:
                there = ", ".join(map(str, dataset))
                raise LoopscopeError(f"a data set with the splits {there}: choose one of them with {setting('split')}")
            if train is None and split != "train":
                train = dataset.get("train")
            dataset = dataset[split]
        elif not is_dataset(dataset):
            raise LoopscopeError(f"{shown(dataset)} is not a data set of `datasets`; rows go to Task.from_rows")
        own = getattr(getattr(dataset, "info", None), "dataset_name", None)
        return cls.from_rows(
            dataset, name=name or own or "dataset", fields=fields, template=template, train=train or (), decode=decode
        )

    def source_rows(self, *, train: bool = False) -> Iterator[SourceRow]:
        """Its rows with their places."""
        rows, what = (self.train, "train row") if train else (self.rows, "row")
        if not rows:
            raise LoopscopeError(f"the task {self.name!r} has no rows; it needs at least one")
        return (SourceRow(i, f"task {self.name}, {what} {i}", dict(row)) for i, row in enumerate(rows))


def is_dataset(given: object) -> bool:
    """Whether it is an object of the library `datasets`, which is not imported for that."""
    return type(given).__module__.partition(".")[0] == "datasets"


def _listed(rows: Any, what: str, fields: Mapping[str, str] | None) -> tuple[dict[str, Any], ...]:
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise LoopscopeError(f"{setting(what)} takes a list of rows, each a mapping, not {shown(rows)}")
    renamed = dict(fields or {})
    if not all(isinstance(name, str) for name in (*renamed, *renamed.values())):
        raise LoopscopeError(f"{setting('fields', fields)} must name fields by fields, as text")
    found = []
    for number, row in enumerate(_bounded(rows)):
        if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
            raise LoopscopeError(f"{what} {number} is {shown(row)}; each row is a mapping from field names to values")
        plain = SourceRow(number, f"{what} {number}", {name: _plain(entry) for name, entry in row.items()})
        found.append({**plain.fields, **{name: value(plain, path) for name, path in renamed.items()}})
    return tuple(found)


def _bounded(values: Iterable[Any]) -> list[Any]:
    listed = list(islice(values, MOST_SOURCE_ROWS + 1))
    if len(listed) > MOST_SOURCE_ROWS:
        raise LoopscopeError(f"more than {MOST_SOURCE_ROWS:,} rows; split the task")
    return listed


def _plain(value: Any) -> Any:
    """Arrays and tensors as lists, tuples as lists, all the way down."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, range) or (isinstance(value, Sequence) and not isinstance(value, str | bytes)):
        return [_plain(entry) for entry in value]
    return value


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
                raise row.fault("options_ids", f"must hold 2 to {MOST_OPTIONS} lists of token ids, one an option")
            continuations = tuple(_ids(row, "options_ids", entry) for entry in listed)
            answer = option_index(row, value(row, "answer"), len(continuations))
        size = sum(len(prompt) + len(ids) for ids in continuations)
        if size > MOST_IDS:
            raise LoopscopeError(
                f"{row.where}: {size} token ids, with the prompt once an option; a question has at most {MOST_IDS}"
            )
        self._digest.update(canonical([row.index, prompt, continuations, answer]) + b"\n")
        return self._pieces.shown(Row(name, row.index, "", (), answer, ids=GivenIds(prompt, continuations, ())))

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


def _ids(row: SourceRow, name: str, found: Any) -> tuple[int, ...]:
    if not isinstance(found, list):
        raise row.fault(name, f"must be a list of token ids, not {json_kind(found)}")
    if not found:
        remedy = "put the token there that begins a text" if name == "prompt_ids" else "leave the row out"
        raise row.fault(name, f"is empty; {remedy}")
    for entry in found:
        number = index(entry)
        if number is None or not 0 <= number <= LARGEST_ID:
            raise row.fault(name, f"holds {shown(entry)}; token ids are whole numbers from 0 to {LARGEST_ID}")
    return tuple(int(entry) for entry in found)


class Pieces:
    """Text for token ids, each decoded once.

    `decode` is a function of one id or of a list of ids, a list or mapping of texts by id, or an object with such a
    function of that name, as tokenizers are.
    """

    def __init__(self, decode: Any) -> None:
        self.known: dict[int, str] = {}
        if isinstance(decode, Mapping | list | tuple):
            decode = decode.__getitem__
        call = getattr(decode, "decode", decode)
        if decode is not None and (not callable(call) or isinstance(decode, str | bytes)):
            raise LoopscopeError(
                f"{setting('decode', decode)} cannot turn a token id into text: give a function, a list of texts or a"
                " tokenizer"
            )
        self._call: Callable[[Any], Any] | None = call

    def shown(self, row: Row) -> Row:
        """A row of ids with the texts that stand for them."""
        assert row.ids is not None
        where = f"question {row.id}"
        prompt, *scored = ([self._piece(n, where) for n in ids] for ids in (row.ids.prompt, *row.ids.continuations))
        return dataclasses.replace(
            row,
            context="".join(prompt),
            continuations=tuple("".join(texts) for texts in scored),
            ids=row.ids._replace(pieces=tuple(map(tuple, scored))),
        )

    def _piece(self, number: int, where: str) -> str:
        if self._call is None:
            return f"[{number}]"
        if number not in self.known:
            try:
                try:
                    found = self._call(number)
                except (TypeError, LoopscopeError):  # it takes a list
                    found = self._call([number])
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


def shown_through(task: LoadedTask, decode: object) -> LoadedTask:
    """The same task, its ids shown through a tokenizer where the user gave no `decode`."""
    if task.template != AS_NUMBERS or decode is None:
        return task
    pieces = Pieces(decode)
    return dataclasses.replace(task, rows=tuple(map(pieces.shown, task.rows)))


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
