"""Rows of a data file: JSONL, gzipped JSONL or Parquet, one at a time and each with the place it came from.

A row keeps its place ("my.jsonl, line 7") so that whoever finds a mistake in it later can say where it is.
Files are read as a stream: a split of ten thousand questions is never held as parsed JSON.
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

SUFFIXES = (".jsonl.gz", ".jsonl", ".parquet")


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
        LoopscopeError: the file is missing, unreadable, empty, of another kind, a damaged gzip or Parquet file,
            not UTF-8, or has a line that is not a JSON object; the message names file and line.
    """
    path = Path(path)
    if not is_data_file(path.name):
        raise LoopscopeError(f"{path} is not a data file loopscope reads; use one of {', '.join(SUFFIXES)}")
    if not path.exists():
        raise LoopscopeError(f"data file {path} does not exist; check the path")
    if path.is_dir():
        raise LoopscopeError(f"{path} is a directory; name the data file in it")
    count = 0
    for row in _parquet(path) if path.name.lower().endswith(".parquet") else _jsonl(path):
        count += 1
        yield row
    if count == 0:
        raise LoopscopeError(f"{path} has no rows; it needs at least one")


def _jsonl(path: Path) -> Iterator[SourceRow]:
    index = 0
    line_number = 0
    try:
        with _open(path) as file:
            # Lines end at \n alone: text split at U+2028 and its kin would cut JSON strings in two.
            for line_number, line in enumerate(file, start=1):
                if line.strip():
                    where = f"{path}, line {line_number}"
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


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        text = line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise LoopscopeError(f"{where}: not UTF-8 (byte {error.start}); save the file as UTF-8") from error
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise LoopscopeError(f"{where}: not valid JSON ({reason}); each line must be one JSON object") from error
    if not isinstance(value, dict):
        raise LoopscopeError(f"{where}: a JSON {type(value).__name__}, but each line must be one JSON object")
    return value


def _parquet(path: Path) -> Iterator[SourceRow]:
    try:
        import polars
    except ImportError as error:
        raise LoopscopeError(f"reading {path} needs polars: pip install polars") from error
    try:
        frame = polars.read_parquet(path, memory_map=False)
    except (polars.exceptions.PolarsError, OSError) as error:
        raise LoopscopeError(f"cannot read {path} as Parquet ({_one_line(error)}); fetch it again") from error
    for index, fields in enumerate(frame.iter_rows(named=True)):
        yield SourceRow(index, f"{path}, row {index}", fields)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__
