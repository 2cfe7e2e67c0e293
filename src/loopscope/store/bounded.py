"""Reading the JSON of a run directory: plain files only, bounded in size and nesting before anything is parsed.

A manifest, a record or a log that someone else wrote may hold anything. What is over a limit is damage like any other,
so that no file ends a reader in a recursion error, a wait for a FIFO or a memory full of nothing.
"""

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

MAX_JSON_BYTES = 64 * 2**20
"""Largest manifest, record, seal or log that is read; a real manifest has some kilobytes."""
MAX_JSON_DEPTH = 32
"""Deepest nesting that is parsed; a real manifest has five levels."""

# A string that does not end matches to the end of the text, so that the search stays linear.
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[][{}]', re.DOTALL)


def read_bounded(path: Path) -> bytes:
    """The bytes of a plain file.

    Raises:
        FileNotFoundError, NotADirectoryError: it is not there.
        OSError: it is too large, is no plain file, or cannot be read; `strerror` says why.
    """
    # O_NONBLOCK: opening a FIFO would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "it is no plain file", str(path))
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_JSON_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_JSON_BYTES:
        raise OSError(0, f"it has more than {MAX_JSON_BYTES >> 20} MiB", str(path))
    return data


def parse_json(data: bytes) -> Any:
    """The value of some JSON; ValueError if it is none, is nested too deeply, or holds NaN or an infinity."""
    text = data.decode()
    # Counting is enough for nearly every file; only where brackets abound are they followed.
    if text.count("{") + text.count("[") > MAX_JSON_DEPTH:
        depth = 0
        for found in _STRING_OR_BRACKET.finditer(text):
            depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(found[0], 0)
            if depth > MAX_JSON_DEPTH:
                raise ValueError(f"it is nested more than {MAX_JSON_DEPTH} deep")
    return json.loads(text, parse_constant=_refuse)


def _refuse(name: str) -> None:
    raise ValueError(f"it holds {name}")
