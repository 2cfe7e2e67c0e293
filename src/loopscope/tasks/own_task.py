"""`Task`: rows given in Python, as texts or token ids, or as a data set of Hugging Face `datasets`.

The rows are those of a data file (`items`, `token_ids`), so everything that reads a file reads them; what identifies
such a task in a run is the hash of its rows and of how they are worded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from loopscope.errors import LoopscopeError, setting, shown, text
from loopscope.tasks.known_tasks import embedded_name, find_benchmark
from loopscope.tasks.source_rows import MOST_SOURCE_ROWS, SourceRow, value
from loopscope.tasks.template import Template, parse_template, read_template
from loopscope.tasks.token_ids import IdRows

Rows = Iterable[Mapping[str, Any]]
Ids = Iterable[int]


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
        return cls(name, _listed(rows, "rows", fields), _listed(train, "train", fields), _template(template), decode)

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
        listed = {field: _column(field, values) for field, values in columns.items()}
        counts = {field: len(values) for field, values in listed.items()}
        if len(set(counts.values())) > 1:
            said = ", ".join(f"{count} {field}" for field, count in counts.items())
            raise LoopscopeError(f"the columns of the task {name!r} are not equally long: {said}")
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
                raise LoopscopeError(
                    f"a data set with the splits {', '.join(map(str, dataset))}: choose one of them with"
                    f" {setting('split')}"
                )
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


def _column(name: str, values: Any) -> list[Any]:
    plain = _plain(values)
    if isinstance(plain, str | bytes | Mapping) or not isinstance(plain, Iterable):
        raise LoopscopeError(f"{name} must be a list with an entry for each question, not {shown(values)}")
    return [_plain(entry) for entry in _bounded(plain)]


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


def _template(given: Any) -> Template | None:
    if given is None or isinstance(given, Template):
        return given
    if isinstance(given, Mapping):
        return parse_template(dict(given), "given in Python")
    return read_template(text("template", given))
