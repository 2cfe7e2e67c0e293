"""SHA-256 of files, identifier lists and the package's own sources, and the JSON that holds such digests.

A manifest, a record or a log that someone else wrote may hold anything, so JSON is read from plain files only, and
bounded in size and nesting before it is parsed: what is over a limit is damage like any other. No file ends a reader in
a recursion error, a wait for a FIFO or a full memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, StringConstraints

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

_NOT_MEASURING = ("cli", "report", "stats", "studies")
"""Packages that never touch a stored number: a run may be resumed after they were edited."""


def sha256_bytes(data: bytes) -> str:
    """The hexadecimal SHA-256 of some bytes."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """The hexadecimal SHA-256 of a file, read bit by bit."""
    digest = hashlib.sha256()
    # Unbuffered and in large blocks: most shards are one read, and readers pay for every microsecond here.
    with open(path, "rb", buffering=0) as file:
        while data := file.read(_READ_BYTES):
            digest.update(data)
    return digest.hexdigest()


_READ_BYTES = 2**18
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
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(0, "it is no plain file", str(path))
        with open(descriptor, "rb", closefd=False) as file:
            # `read` allocates what it is asked for; one byte more than the file has shows whether it grows.
            data = file.read(min(found.st_size, MAX_JSON_BYTES) + 1)
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


def json_bytes(value: object) -> bytes:
    """JSON as the run directory holds it: two spaces, given order, no NaN, one final newline."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


class SealedJson(BaseModel):
    """JSON that carries the digest of itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def encode(self) -> bytes:
        """The one form in which this is written, digest last."""
        payload = self.model_dump(mode="json")
        return json_bytes({**payload, "sha256": sha256_bytes(json_bytes(payload))})
