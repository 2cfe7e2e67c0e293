"""SHA-256 of files, identifier lists and the package's own sources, and JSON that carries its own digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, StringConstraints

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

_NOT_MEASURING = ("cli", "report", "stats", "studies")
"""Packages that never touch a stored number: a run may be resumed after they were edited."""


def sha256_bytes(data: bytes) -> str:
    """The hexadecimal SHA-256 of some bytes."""
    return hashlib.sha256(data).hexdigest()


def ids_sha256(example_ids: Iterable[str]) -> str:
    r"""The digest of example identifiers in order: equal only for the same examples in the same order.

    Each identifier is hashed as a JSON string on a line of its own, so no two lists run into one another.

    >>> ids_sha256(["a", "b"]) == ids_sha256(["a\nb"])
    False
    """
    return sha256_bytes(b"".join(json.dumps(example_id).encode() + b"\n" for example_id in example_ids))


def code_sha256(package: Path | None = None) -> str:
    """The digest of the package's Python sources that take part in measuring, by relative path and content."""
    root = Path(__file__).resolve().parents[1] if package is None else package
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    names = [name for name in names if name.split("/")[0] not in _NOT_MEASURING]
    lines = [f"{name} {sha256_bytes((root / name).read_bytes())}\n" for name in names]
    return sha256_bytes("".join(lines).encode())


def json_bytes(value: object) -> bytes:
    """JSON as the run directory holds it: two spaces, given order, no NaN, one final newline."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


_END, _DIGEST = b"\n}\n", b',\n  "sha256": "'


class Stored(BaseModel):
    """What a JSON file of the run directory holds: declared fields and no others, finite numbers, texts of a size."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, str_max_length=10_000)


class SealedJson(Stored):
    """JSON whose last field is the digest of the rest."""

    def encode(self) -> bytes:
        """The bytes of the file."""
        payload = json_bytes(self.model_dump(mode="json"))
        return payload.removesuffix(_END) + _DIGEST + sha256_bytes(payload).encode() + b'"' + _END

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read such a file; ValueError unless its digest, which is checked before parsing, is that of the rest."""
        payload, _, digest = data.rpartition(_DIGEST)
        if digest != sha256_bytes(payload + _END).encode() + b'"' + _END:
            raise ValueError("it does not match its own digest")
        return cls.model_validate_json(payload + _END, strict=True)
