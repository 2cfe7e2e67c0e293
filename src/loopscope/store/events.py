"""`events.jsonl`: what happened and when, kept apart so that everything else in a run can be byte-identical."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loopscope.errors import LoopscopeError
from loopscope.store.atomic import open_plain, require_plain, write_atomically
from loopscope.store.hashing import parse_json, read_bounded, sha256_bytes

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
