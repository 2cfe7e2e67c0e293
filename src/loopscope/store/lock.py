"""One writer per run directory: an advisory lock that the kernel drops when its process ends, however it ends.

The lock is `flock` on a small file that stays in place; its content (the process id) only serves the message. A killed
writer leaves the file but not the lock, so nothing has to be cleaned by hand. On NFS Linux turns it into a byte-range
lock that excludes writers on other machines too.
"""

from __future__ import annotations

import errno
import os
import weakref
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from loopscope.errors import LoopscopeError, setting
from loopscope.store.atomic import clear_write_errors, open_plain

try:
    import fcntl
except ImportError:  # pragma: no cover - only on Windows
    fcntl = None  # type: ignore[assignment]


class RunLock:
    """The right to write into one run directory, held until `release` or the end of the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock or raise a `LoopscopeError` that names the process holding it."""
        if fcntl is None:  # pragma: no cover - only on Windows
            raise LoopscopeError("writing a run needs POSIX file locks: use Linux, macOS or WSL")
        with clear_write_errors(self._path):
            descriptor = open_plain(self._path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "process unknown"
            os.close(descriptor)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise LoopscopeError(
                    f"{self._path.parent} is being written by another command ({holder}):"
                    f" wait until it ends or choose another {setting('output')}"
                ) from error
            raise LoopscopeError(
                f"{self._path} cannot be locked ({os.strerror(error.errno or 0)}):"
                f" choose an {setting('output')} on a file system with file locks"
            ) from error
        self._descriptor = descriptor
        _held.add(self)
        # The process id only serves the message above; on a full disk the manifest is what reports the failure.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give the lock back; twice is as good as once."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        _held.discard(self)

    def __enter__(self) -> RunLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


_held: weakref.WeakSet[RunLock] = weakref.WeakSet()


def _forget_in_child() -> None:
    """Close inherited locks: a forked worker that outlives its killed parent must not keep the run locked."""
    for lock in list(_held):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
