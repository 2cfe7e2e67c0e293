"""`events.jsonl`: what happened and when, kept apart so that everything else in a run can be byte-identical."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Event = dict[str, Any]


class EventLog:
    """Appends one JSON line per event.

    A line that cannot be written (disk full) is dropped: it is a log, not a record, and the shard that is written next
    reports the same failure with its remedy. A line torn by a kill is skipped by `read_events`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, event: str, **fields: Any) -> None:
        """Append one event with the current time (UTC)."""
        entry = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **fields}
        line = json.dumps(entry, ensure_ascii=False).encode() + b"\n"
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                size = os.fstat(descriptor).st_size
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    line = b"\n" + line
                os.write(descriptor, line)
            finally:
                os.close(descriptor)
        except OSError:
            return


def read_events(path: Path) -> list[Event]:
    """All whole events of a log, oldest first; an absent log has none."""
    if not path.exists():
        return []
    events = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(entry, dict):
            events.append(entry)
    return events
