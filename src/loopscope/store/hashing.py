"""SHA-256 of files, identifier lists and the package's own sources: what a manifest pins.

`events.jsonl`: what happened and when, kept apart so that everything else in a run can be byte-identical.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loopscope.errors import LoopscopeError
from loopscope.store.atomic import open_plain, require_plain, write_atomically
from loopscope.store.bounded import parse_json, read_bounded

_NOT_MEASURING = ("cli", "report", "stats", "studies")
"""Rooms that never touch a stored number: editing them does not part a run from its code."""


def sha256_bytes(data: bytes) -> str:
    """The hexadecimal SHA-256 of some bytes."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """The hexadecimal SHA-256 of a file, read in pieces."""
    digest = hashlib.sha256()
    # Unbuffered and in large pieces: most shards are one read, and readers pay for every microsecond here.
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


_PIECE = 2**18
_SETTLED_NS = 2_000_000_000
"""A file changed less than this ago is read again next time: a change within one tick of its clock leaves no trace."""
_hashed: dict[str, tuple[tuple[int, ...], str]] = {}


def sha256_once(path: Path) -> str:
    """`sha256_file`, once per process for as long as size, times and inode of the file stay the same."""
    name = os.path.abspath(path)
    identity = _identity(os.stat(name))
    known = _hashed.get(name)
    if known is not None and known[0] == identity:
        return known[1]
    digest = sha256_file(path)
    changed = max(identity[-2:])
    if _identity(os.stat(name)) == identity and time.time_ns() - changed > _SETTLED_NS:
        _hashed[name] = (identity, digest)
    return digest


def _identity(status: os.stat_result) -> tuple[int, ...]:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(0, "it is no plain file")
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def ids_sha256(example_ids: Iterable[str]) -> str:
    r"""The digest of example identifiers in order: equal only for the same examples in the same order.

    Each identifier is hashed as a JSON string on a line of its own, so no two lists run into one another.

    >>> ids_sha256(["a", "b"]) == ids_sha256(["a\nb"])
    False
    """
    digest = hashlib.sha256()
    for example_id in example_ids:
        digest.update(json.dumps(example_id).encode() + b"\n")
    return digest.hexdigest()


def code_sha256(package: Path | None = None) -> str:
    """The digest of the package's Python sources that take part in measuring, by relative path and content."""
    root = Path(__file__).resolve().parents[1] if package is None else package
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        relative = path.relative_to(root)
        if relative.parts[0] not in _NOT_MEASURING:
            digest.update(f"{relative.as_posix()} {sha256_file(path)}\n".encode())
    return digest.hexdigest()


Event = dict[str, Any]

_DIGEST = re.compile(rb', "sha256": "[0-9a-f]{64}"}')
"""The end of a whole line; inside a string its quotes would be escaped."""


class EventLog:
    """Appends one JSON line per event, with the digest of the line.

    A line that cannot be written (disk full) is dropped: it is a log, not a record, and the shard that is written next
    reports the same failure with its remedy. A line torn by a kill stands at the end of the log until `mend`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, event: str, **fields: Any) -> None:
        """Append one event with the current time (UTC)."""
        entry = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **fields}
        line = _encode(entry)
        try:
            descriptor = open_plain(self._path, os.O_WRONLY | os.O_APPEND)
            try:
                size = os.fstat(descriptor).st_size
                if os.write(descriptor, line) < len(line):
                    os.ftruncate(descriptor, size)
            finally:
                os.close(descriptor)
        except OSError:
            return

    def mend(self) -> int:
        """Drop the lines that are torn or damaged; how many that were.

        Only the writer of a run may do so. A log that cannot be read or written stays as it is.
        """
        require_plain(self._path)
        try:
            lines = list(_lines(read_bounded(self._path)))
        except OSError:
            return 0
        sound = [line for line, entry in lines if entry is not None]
        if len(sound) < len(lines):
            write_atomically(self._path, b"".join(line + b"\n" for line in sound))
        return len(lines) - len(sound)


def read_events(path: Path) -> list[Event]:
    """All events of a log, oldest first; an absent log has none, and a last line that is still being written is none.

    Raises:
        LoopscopeError: a line is not as it was written.
    """
    try:
        data = read_bounded(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise LoopscopeError(f"cannot read {path} ({error.strerror}): move it away, no table depends on it") from error
    events = []
    for number, (line, entry) in enumerate(_lines(data), start=1):
        if entry is not None:
            events.append(entry)
        elif not _is_torn(line, data):
            raise LoopscopeError(
                f"line {number} of {path} is not as it was written: the same `measure` command drops it,"
                " and no table depends on it"
            )
    return events


def _encode(entry: Event) -> bytes:
    digest = sha256_bytes(_text(entry))
    return _text({**entry, "sha256": digest}) + b"\n"


def _text(entry: Event) -> bytes:
    # Half a surrogate pair (from a file name that is no UTF-8) becomes the JSON escape of itself.
    return json.dumps(entry, ensure_ascii=False).encode(errors="backslashreplace")


def _lines(data: bytes) -> Iterator[tuple[bytes, Event | None]]:
    """Every line with its event, None where it is not as `_encode` wrote it."""
    # A log without a single digest is of a loopscope that wrote none; what of it can be read is taken.
    checked = _DIGEST.search(data) is not None
    for line in data.removesuffix(b"\n").split(b"\n") if data else ():
        entry = _decode(line, checked)
        if checked or entry is not None:
            yield line, entry


def _decode(line: bytes, checked: bool) -> Event | None:
    try:
        entry: Event = parse_json(line)
        if checked:
            entry.pop("sha256")
            return entry if _encode(entry) == line + b"\n" else None
    except (ValueError, KeyError, AttributeError, TypeError):
        return None
    return entry if isinstance(entry, dict) else None


def _is_torn(line: bytes, data: bytes) -> bool:
    """Whether a line is the mere beginning of one: the last of the log, without its digest and newline."""
    return not data.endswith(b"\n") and data.endswith(line) and _DIGEST.search(line) is None
