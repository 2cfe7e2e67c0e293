"""The files of a run directory: whole or absent, with their hashes; and the lock of the one command that may write.

A file is written under its name plus `.partial`, forced to disk and renamed, and its folder is forced to disk after
that: a reader, or a command after a kill or a power failure, sees the old file, the new one or none. What a crash
leaves behind are `.partial` files, which the next writer removes. Object stores mounted as folders do not rename
atomically: a run belongs on a real file system. Every failure is raised as one line with its remedy.

The lock is `flock` on a file that stays in place: the kernel drops it when its process ends, however that ends.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, StringConstraints

from loopscope.errors import LoopscopeError, setting

PARTIAL = ".partial"
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space or raise the quota",
    errno.EFBIG: "raise the file-size limit (ulimit -f)",
    errno.ENOTDIR: "choose an {output} path whose parents are folders",
    errno.ENAMETOOLONG: "choose a shorter {output} path",
}
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


def code_sha256() -> str:
    """The digest of the package's Python sources that take part in measuring, by relative path and content."""
    root = Path(__file__).resolve().parents[1]
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    names = [name for name in names if name.split("/")[0] not in _NOT_MEASURING]
    return sha256_bytes("".join(f"{name} {sha256_bytes((root / name).read_bytes())}\n" for name in names).encode())


class Stored(BaseModel):
    """What a JSON file of the run directory holds: declared fields and no others, finite numbers, texts of a size."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, str_max_length=10_000)

    def encode(self) -> bytes:
        """The bytes of the file: JSON with two spaces, in the declared order, one final newline."""
        payload = self.model_dump(mode="json")
        return (json.dumps(payload, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


_END, _DIGEST = b"\n}\n", b',\n  "sha256": "'


class SealedJson(Stored):
    """JSON whose last field is the digest of the rest."""

    def encode(self) -> bytes:
        """The bytes of the file."""
        payload = super().encode()
        return payload.removesuffix(_END) + _DIGEST + sha256_bytes(payload).encode() + b'"' + _END

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read such a file; ValueError unless its digest, which is checked before parsing, is that of the rest."""
        payload, _, digest = data.rpartition(_DIGEST)
        if digest != sha256_bytes(payload + _END).encode() + b'"' + _END:
            raise ValueError("it does not match its own digest")
        return cls.model_validate_json(payload + _END, strict=True)


@contextmanager
def clear_write_errors(path: Path) -> Iterator[None]:
    """Turn a failed file operation into one line that names the file, the cause and the remedy."""
    try:
        yield
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else path
        remedy = _REMEDIES.get(error.errno or 0, "choose an {output} folder that can be written")
        raise LoopscopeError(
            f"cannot write {where}: {error.strerror or error}; {remedy.format(output=setting('output'))} and give the"
            " same command again: what was finished is kept"
        ) from error


def require_plain(path: Path) -> None:
    """Refuse to write where something other than a plain file is: a link, a device, a folder."""
    with clear_write_errors(path), suppress(FileNotFoundError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise LoopscopeError(f"{path} is not a plain file: move it away or choose another {setting('output')}")


def write_atomically(path: Path, data: bytes) -> None:
    """Write one file so that it is whole or absent, and on disk when this returns."""
    require_plain(path)
    partial = path.with_name(path.name + PARTIAL)
    with clear_write_errors(path):
        try:
            partial.unlink(missing_ok=True)
            # O_EXCL after the unlink: a link left under this name must not lead the write elsewhere.
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(partial, path)
        except OSError:
            # On a full disk the half-written file would hold the very space that is missing.
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Force a folder's entries to disk, where its file system can."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


class RunLock:
    """The right to write into one run directory, held until `release` or the end of the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock or raise a `LoopscopeError` that names the process holding it."""
        try:
            import fcntl
        except ImportError as error:  # pragma: no cover
            raise LoopscopeError("Windows can read runs, not write them: measure on Linux, macOS or WSL") from error
        require_plain(self.path)
        with clear_write_errors(self.path):
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "process unknown"
                os.close(descriptor)
                if not isinstance(error, BlockingIOError):
                    raise
                raise LoopscopeError(
                    f"{self.path.parent} is being written by another command ({holder}):"
                    f" wait until it ends or choose another {setting('output')}"
                ) from error
        self._descriptor = descriptor
        # The process id only serves the message above; on a full disk the manifest is what reports the failure.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give the lock back; twice changes nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None

    def __enter__(self) -> RunLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
