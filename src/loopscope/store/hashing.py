"""SHA-256 of files, identifier lists and the package's own sources, and the JSON that holds such digests."""

from __future__ import annotations

import hashlib
import json
import os
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


def parse_json(data: bytes) -> Any:
    """The value of some JSON; ValueError if it is not JSON or is nested deeper than Python follows."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def json_bytes(value: object) -> bytes:
    """JSON as the run directory holds it: two spaces, given order, no NaN, one final newline."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def sealed_bytes(payload: dict[str, Any]) -> bytes:
    """An object as JSON that carries the digest of itself, digest last."""
    return json_bytes({**payload, "sha256": sha256_bytes(json_bytes(payload))})


def unsealed(data: bytes) -> dict[str, Any]:
    """The object of such JSON without its digest; ValueError unless that is the digest of the rest."""
    payload = parse_json(data)
    if not isinstance(payload, dict) or payload.pop("sha256", None) != sha256_bytes(json_bytes(payload)):
        raise ValueError("it does not match its own digest")
    return payload


class SealedJson(BaseModel):
    """JSON that carries the digest of itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def encode(self) -> bytes:
        """The one form in which this is written, digest last."""
        return sealed_bytes(self.model_dump(mode="json"))
