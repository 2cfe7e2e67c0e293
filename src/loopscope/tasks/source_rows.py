"""Source rows: a data file's rows (JSONL, gzipped JSONL or Parquet), one at a time, and typed access to their fields.

A row keeps its place ("my.jsonl, line 7") so that whoever finds a mistake in it later can say where it is.
Files are read as a stream: a split of ten thousand questions is never held as parsed JSON. Lines, rows and the whole
(once decompressed) are bounded, since a few kilobytes can unpack to terabytes.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from loopscope.errors import LoopscopeError
from loopscope.regular_files import check_regular

SUFFIXES = (".jsonl.gz", ".jsonl", ".parquet")
MOST_SOURCE_ROWS = 10_000_000
"""Rows, or lines, of a source."""
MOST_ROW_BYTES = 8 * 2**20
"""Bytes of one row: a line of JSON, or the values of a Parquet row."""
MOST_BYTES = 2**30
"""Bytes of a source once decompressed."""
_PARQUET_ROWS = 64
_PARQUET_BYTES = 256 * 2**20
"""Rows and bytes that are decoded at a time."""


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


def is_data_file(name: str) -> bool:
    """Whether a name ends like a data file that `read_rows` can read.

    >>> is_data_file("mine.jsonl.gz"), is_data_file("gsm8k:train")
    (True, False)
    """
    return name.lower().endswith(SUFFIXES)


def read_rows(path: str | Path) -> Iterator[SourceRow]:
    """The rows of a .jsonl, .jsonl.gz or .parquet file, in file order.

    Raises:
        LoopscopeError: the file is missing, unreadable, empty, too large, of another kind, a damaged gzip or Parquet
            file, not UTF-8, or has a line that is not a JSON object; the message names file and line.
    """
    path = Path(path)
    if not is_data_file(path.name):
        raise LoopscopeError(f"{path} is not a data file loopscope reads; use one of {', '.join(SUFFIXES)}")
    check_regular(path, "data file")
    count = 0
    for row in _parquet(path) if path.name.lower().endswith(".parquet") else _jsonl(path):
        count += 1
        yield row
    if count == 0:
        raise LoopscopeError(f"{path} has no rows; it needs at least one")


def _jsonl(path: Path) -> Iterator[SourceRow]:
    index = 0
    line_number = 0
    size = 0
    try:
        with _open(path) as file:
            # Lines end at \n alone: text split at U+2028 and its kin would cut JSON strings in two.
            while line := file.readline(MOST_ROW_BYTES + 1):
                line_number += 1
                where = f"{path}, line {line_number}"
                size += len(line)
                _check_sizes(where, line_number, len(line), size)
                if line.strip():
                    yield SourceRow(index, where, _parse(line.removeprefix(b"\xef\xbb\xbf"), where))
                    index += 1
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        reason = str(error).rstrip(".")
        raise LoopscopeError(
            f"{path} is a damaged gzip file (after line {line_number}: {reason}); fetch it again"
        ) from error
    except OSError as error:
        raise LoopscopeError(f"cannot read {path}: {error.strerror or error}") from error


def _open(path: Path) -> gzip.GzipFile | BinaryIO:
    if path.name.lower().endswith(".gz"):
        return gzip.open(path, "rb")
    return path.open("rb")


def _check_sizes(where: str, rows: int, row_bytes: int, total_bytes: int) -> None:
    """Refuse a source at the first row that is too long, or one too many."""
    if row_bytes > MOST_ROW_BYTES:
        raise LoopscopeError(f"{where} is longer than {MOST_ROW_BYTES} bytes, the most that a row may have; shorten it")
    if total_bytes > MOST_BYTES or rows > MOST_SOURCE_ROWS:
        raise LoopscopeError(
            f"{where} is beyond what a source may hold, {MOST_BYTES} bytes and {MOST_SOURCE_ROWS} rows; split the file"
        )


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        text = line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise LoopscopeError(f"{where}: not UTF-8 (byte {error.start}); save the file as UTF-8") from error
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise LoopscopeError(f"{where}: not valid JSON ({reason}); each line must be one JSON object") from error
    if not isinstance(value, dict):
        raise LoopscopeError(f"{where}: a JSON {type(value).__name__}, but each line must be one JSON object")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of two equal keys Python would keep the last without a word."""
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"key {twice[:60]!r} appears twice")
    return made


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _parquet(path: Path) -> Iterator[SourceRow]:
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    index = 0
    size = 0
    try:
        with parquet.ParquetFile(path, memory_map=False) as file:
            groups = [file.metadata.row_group(number).total_byte_size for number in range(file.num_row_groups)]
            _check_sizes(str(path), file.metadata.num_rows, 0, sum(groups))
            # A value is at most as long as its row group, but may be repeated in each row of a batch.
            rows = max(1, min(_PARQUET_ROWS, _PARQUET_BYTES // max([1, *groups])))
            for batch in file.iter_batches(rows, use_threads=False):
                for within, fields in enumerate(batch.to_pylist()):
                    where = f"{path}, row {index}"
                    row_bytes = batch.slice(within, 1).nbytes
                    size += row_bytes
                    _check_sizes(where, index + 1, row_bytes, size)
                    yield SourceRow(index, where, fields)
                    index += 1
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise LoopscopeError(f"cannot read {path} as Parquet ({_one_line(error)}); fetch it again") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__


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
        raise LoopscopeError(f"{row.where}: field {names[0]!r} must be text, not {json_kind(found)}")
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
        raise LoopscopeError(f"{row.where}: field {name!r} must be a list of texts, not {json_kind(found)}")
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
            f"{row.where}: field {name!r} must be the number of the right option (from 0), not {json_kind(found)}"
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


def json_kind(found: Any) -> str:
    """A JSON value's type in the words of JSON.

    >>> json_kind(True), json_kind(1.5), json_kind([1]), json_kind(None)
    ('true/false', 'a number', 'a list', 'null')
    """
    if isinstance(found, bool):
        return "true/false"
    names = ((str, "text"), (int | float, "a number"), (list, "a list"), (dict, "an object"))
    return next((name for types, name in names if isinstance(found, types)), "null")
