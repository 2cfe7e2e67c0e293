"""Source rows: a data file's rows (JSONL, gzipped JSONL or Parquet), one at a time, and the questions in them.

A row keeps its place ("my.jsonl, line 7") so that whoever finds a mistake in it later can say where it is. Its question
(`Item`) has the same fields whichever source it came from; a benchmark's columns are listed in `benchmarks.toml`.

A user's own data file has `prompt` + `solution`, or `context` + `options` + `answer`, where `answer` is the right
option's number from 0. `id` may name a row; ids must differ. Other fields are allowed: a template given with the task
may use any text field of the row.

`Selection` says which rows of a split are used: a named subset, chosen rows, the first few; in source order, whatever
is chosen.
"""

from __future__ import annotations

import gzip
import itertools
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ConfigDict

from loopscope.errors import LoopscopeError, index, parse_ranges, setting, shown
from loopscope.limits import check_regular
from loopscope.tasks.encoding import Scalar

SUFFIXES = (".jsonl.gz", ".jsonl", ".parquet")
MOST_SOURCE_ROWS = 10_000_000
"""Rows of a source."""
MOST_ROW_BYTES = 8 * 2**20
"""Bytes of a line: a few kilobytes of gzip can unpack to terabytes."""
MOST_OPTIONS = 1_000
"""Options of a question; each is encoded with the whole context."""


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One source row.

    Attributes:
        index: position in the source, from 0: the id that `--ids` names and that seeds Huginn's state.
        where: the place to show in an error, e.g. "my.jsonl, line 7".
        fields: the row as it was stored.
    """

    index: int
    where: str
    fields: dict[str, Any]

    def fault(self, name: str, problem: str) -> LoopscopeError:
        """The error to raise for what a field holds."""
        return LoopscopeError(f"{self.where}: field {name!r} {problem}")


def is_data_file(name: str) -> bool:
    """Whether a name ends like a data file that `read_rows` can read.

    >>> is_data_file("mine.jsonl.gz"), is_data_file("gsm8k:train")
    (True, False)
    """
    return name.lower().endswith(SUFFIXES)


def read_rows(path: str | Path) -> Iterator[SourceRow]:
    """The rows of a .jsonl, .jsonl.gz or .parquet file, in file order.

    Raises:
        LoopscopeError: the file is missing, unreadable, empty, too large, of another kind, damaged, not UTF-8, or has
            a line that is not a JSON object; the message names file and line.
    """
    path = Path(path)
    if not is_data_file(path.name):
        task = f" (a task of lm-evaluation-harness is lm_eval:{path})" if path.suffix in (".yaml", ".yml") else ""
        raise LoopscopeError(f"{path} is not a data file loopscope reads; use one of {', '.join(SUFFIXES)}{task}")
    check_regular(path, "data file")
    index = -1
    for index, (where, fields) in enumerate(_parquet(path) if path.suffix.lower() == ".parquet" else _jsonl(path)):
        if index >= MOST_SOURCE_ROWS:
            raise LoopscopeError(f"{path} has more than {MOST_SOURCE_ROWS:,} rows; split the file")
        yield SourceRow(index, where, fields)
    if index < 0:
        raise LoopscopeError(f"{path} has no rows; it needs at least one")


def _jsonl(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb") as file:
            # Lines end at \n alone: text split at U+2028 and its kin would cut JSON strings in two.
            while line := file.readline(MOST_ROW_BYTES + 1):
                number += 1
                where = f"{path}, line {number}"
                if len(line) > MOST_ROW_BYTES:
                    raise LoopscopeError(f"{where} is longer than {MOST_ROW_BYTES} bytes; shorten it")
                if line.strip():
                    yield where, _parse(line.removeprefix(b"\xef\xbb\xbf"), where)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        reason = str(error).rstrip(".")
        raise LoopscopeError(
            f"{path} is a damaged gzip file (after line {number}: {reason}); fetch it again"
        ) from error
    except OSError as error:
        raise LoopscopeError(f"cannot read {path}: {error.strerror or error}") from error


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        read = line.decode("utf-8").rstrip("\r\n")
        found = json.loads(read, object_pairs_hook=_object, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise LoopscopeError(f"{where}: not UTF-8 (byte {error.start}); save the file as UTF-8") from error
    except (ValueError, RecursionError) as error:
        reason = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise LoopscopeError(f"{where}: not valid JSON ({reason}); each line must be one JSON object") from error
    if not isinstance(found, dict):
        raise LoopscopeError(f"{where}: a JSON {type(found).__name__}, but each line must be one JSON object")
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of two equal keys Python would keep the last without a word."""
    if len(made := dict(pairs)) < len(pairs):
        name = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"key {name[:60]!r} appears twice")
    return made


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _parquet(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    index = 0
    try:
        with parquet.ParquetFile(path, memory_map=False) as file:
            for batch in file.iter_batches(64, use_threads=False):
                for fields in batch.to_pylist():
                    yield f"{path}, row {index}", fields
                    index += 1
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise LoopscopeError(f"cannot read {path} as Parquet ({reason}); fetch it again") from error


def find(row: SourceRow, path: str) -> Any:
    """A field, or with dots a field of a field; None where it is missing or null."""
    found: Any = row.fields
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def value(row: SourceRow, *paths: str) -> Any:
    """The first of some fields that the row has; sources differ in what they call a field."""
    for path in paths:
        found = find(row, path)
        if found is not None:
            return found
    raise row.fault(paths[-1], f"is missing; the row has: {', '.join(sorted(row.fields)) or 'none'}")


def text(row: SourceRow, *paths: str, empty: bool = False) -> str:
    """A string field; an empty or blank one is an error unless `empty` allows it."""
    found, name = value(row, *paths), paths[-1]
    if not isinstance(found, str):
        raise row.fault(name, f"must be text, not {json_kind(found)}")
    if not empty and not found.strip():
        raise row.fault(name, "is empty; give it a text or leave the row out")
    check_unicode(row, name, found)
    return found


def check_unicode(row: SourceRow, name: str, found: str) -> None:
    """JSON can spell half of a surrogate pair, which no tokenizer and no file can take."""
    try:
        found.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(found[error.start]):04x}"
        raise row.fault(name, f"holds a broken character ({half}); mend the text") from error


def check_texts(row: SourceRow, name: str, found: Any) -> tuple[str, ...]:
    """`found`, once it is known to be a list of non-empty strings, one an option."""
    if not isinstance(found, list) or not all(isinstance(entry, str) for entry in found):
        raise row.fault(name, f"must be a list of texts, not {json_kind(found)}")
    if not 2 <= len(found) <= MOST_OPTIONS:
        raise row.fault(name, f"has {len(found)} entries; a choice has 2 to {MOST_OPTIONS}")
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
        raise row.fault(name, f"must be the number of the right option (from 0), not {json_kind(found)}")
    if not 0 <= found < options:
        raise row.fault(name, f"is {found}, but the row has {options} options (0 to {options - 1})")
    return found


def json_kind(found: Any) -> str:
    """A JSON value's type in the words of JSON.

    >>> json_kind(True), json_kind(1.5), json_kind([1]), json_kind(None)
    ('true/false', 'a number', 'a list', 'null')
    """
    if isinstance(found, bool):
        return "true/false"
    names = ((str, "text"), (int | float, "a number"), (list, "a list"), (dict, "an object"))
    return next((name for types, name in names if isinstance(found, types)), "null")


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
                raise LoopscopeError(f"{row.where}: answer {right!r} is not one of the option labels {listed}")
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
    found = f"row-{row.index}" if found is None else found
    if isinstance(found, bool) or not isinstance(found, str | int):
        raise row.fault("id", f"must be a text or a whole number, not {json_kind(found)}")
    name = str(found)
    if not 0 < len(name) <= MOST_ID:
        raise row.fault("id", f"has {len(name)} characters; give it 1 to {MOST_ID}")
    check_unicode(row, "id", name)
    if name in seen:
        raise LoopscopeError(f"{row.where}: id {name!r} is already used at {seen[name]}; give each row its own")
    seen[name] = row.where
    return name


LARGEST_ROW = 1_000_000_000
"""The last source row that can be named."""
MOST_ROWS = 1_000_000
"""The most source rows that can be named one by one."""


def parse_ids(given: str) -> tuple[int, ...]:
    """Source rows as written on the command line: numbers and ranges, ends included.

    >>> parse_ids("0,5,10-12")
    (0, 5, 10, 11, 12)
    """
    return parse_ranges(given, "ids", largest=LARGEST_ROW, most=MOST_ROWS)


@dataclass(frozen=True)
class Selection:
    """Rows to use.

    Attributes:
        subset: only these rows of the split (a named subset).
        ids: only these source rows.
        limit: at most this many of the rows that remain.
    """

    subset: range | None = None
    ids: frozenset[int] | None = None
    limit: int | None = None

    @classmethod
    def make(cls, ids: Iterable[int] | None = None, limit: int | None = None) -> Selection:
        """A checked selection."""
        if limit is not None and (index(limit) is None or limit < 1):
            raise LoopscopeError(f"{setting('limit', limit)} is not a whole number of at least 1")
        if ids is None:
            return cls(limit=limit)
        given: object = ids
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise LoopscopeError(f"{setting('ids', given)} is not a list of source rows: give e.g. [0, 5, 10]")
        listed = list(itertools.islice(given, MOST_ROWS + 1))
        for row in listed:
            if index(row) is None or row < 0:
                raise LoopscopeError(f"{setting('ids')} names {shown(row)}; source rows are whole numbers from 0")
        if not 0 < len(listed) <= MOST_ROWS:
            raise LoopscopeError(f"{setting('ids')} names {len(listed)} rows: name 1 to {MOST_ROWS:,}, or leave it out")
        row, times = Counter(listed).most_common(1)[0]
        if times > 1:
            raise LoopscopeError(f"{setting('ids')} names row {row} twice; name each row once")
        return cls(ids=frozenset(map(int, listed)), limit=limit)

    def keeps(self, index: int, kept: int) -> bool:
        """Whether row `index` is used when `kept` rows before it were."""
        chosen = all(index in rows for rows in (self.subset, self.ids) if rows is not None)
        return chosen and (self.limit is None or kept < self.limit)

    def check(self, total: int, where: str) -> None:
        """Whether a source with `total` rows has what was asked for."""
        there = range(total) if self.subset is None else self.subset
        last = there[-1] if there else -1
        if total <= last:
            raise LoopscopeError(f"{where} has {total} rows, fewer than the {last + 1} that the subset reaches over")
        beyond = sorted(row for row in self.ids or () if row not in there)
        if beyond:
            rows = f"rows 0 to {last}" if there.step == 1 else f"rows 0, {there.step}, … {last}"
            raise LoopscopeError(f"{setting('ids')} names row {beyond[0]}, but {where} has {rows}")
