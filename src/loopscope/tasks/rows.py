"""Rows of a data file: JSONL, gzipped JSONL or Parquet, one at a time and each with the place it came from.

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

from loopscope._errors import LoopscopeError
from loopscope._reading import check_regular

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
