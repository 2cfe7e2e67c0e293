"""Files that are either whole or absent: partial file, fsync, rename, fsync of the folder.

A file is written under its own name plus `.partial` in its own folder, forced to disk, renamed onto its final name, and
the folder is forced to disk after that. What this buys, and what it costs:

- A reader, or a process that starts after a kill at any moment, sees the old file, the new one or none.
- After a power failure the same holds on file systems that keep their promise about fsync and rename (ext4, XFS, APFS,
  ZFS, NFS with `sync`). A drive that reports a flush that it did not do can still lose or tear a file; the hashes of
  the commit records find that.
- Two fsyncs a file: about a millisecond on an SSD and ten on a spinning disk, paid once per shard of a work unit. Files
  published together share the fsync of their folder.
- The data are held in memory until they are on disk, so that a failed write loses nothing.
- A crash leaves `.partial` files behind. The next writer removes them, which is safe since it holds the run's lock.
- Object stores mounted as folders do not rename atomically: a run belongs on a real file system, and may be copied
  from there when it is finished.

Every failure is raised: disk full, quota, read-only folder and the like as one `LoopscopeError` line. No write goes
through a symbolic link or takes the place of one: what stands under a name that is to be written must be a plain file
or nothing, and a link, device, FIFO, socket or folder is refused by name.

One writer per run directory: an advisory lock that the kernel drops when its process ends, however it ends.

The lock is `flock` on a small file that stays in place; its content (the process id) only serves the message. A killed
writer leaves the file but not the lock, so nothing has to be cleaned by hand. On NFS Linux turns it into a byte-range
lock that excludes writers on other machines too.
"""

from __future__ import annotations

import errno
import os
import stat
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from loopscope.errors import LoopscopeError, setting

PARTIAL = ".partial"

_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space or raise the quota",
    errno.EFBIG: "raise the file-size limit (ulimit -f)",
    errno.EROFS: "choose an {output} folder that can be written",
    errno.EACCES: "choose an {output} folder that can be written",
    errno.EPERM: "choose an {output} folder that can be written",
    errno.ENOTDIR: "choose an {output} path whose parents are folders",
    errno.ENAMETOOLONG: "choose a shorter {output} path",
}


@contextmanager
def clear_write_errors(path: Path) -> Iterator[None]:
    """Turn a failed file operation into one line that names the file, the cause and the remedy."""
    try:
        yield
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else str(path)
        cause = os.strerror(error.errno) if error.errno else str(error)
        remedy = _REMEDIES.get(error.errno or 0, "mend that").format(output=setting("output"))
        raise LoopscopeError(
            f"cannot write {where}: {cause}; {remedy} and give the same command again: what was finished is kept"
        ) from error


def require_plain(path: Path) -> None:
    """Refuse to write where something other than a plain file stands; the link itself is looked at, not its target."""
    with clear_write_errors(path), suppress(FileNotFoundError):
        _require(stat.S_ISREG(os.lstat(path).st_mode), path, "plain file")


def require_folder(path: Path) -> None:
    """Refuse a folder of a run that is a link to elsewhere or not a folder at all."""
    with clear_write_errors(path):
        _require(stat.S_ISDIR(os.lstat(path).st_mode), path, "folder")


def _require(right: bool, path: Path, wanted: str) -> None:
    if not right:
        raise LoopscopeError(f"{path} is not a {wanted}: move it away or choose another {setting('output')}")


def open_plain(path: Path, flags: int) -> int:
    """A descriptor of a plain file, opened for writing in place and made if it is not there; never through a link."""
    require_plain(path)
    return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def write_atomically(path: Path, data: bytes) -> None:
    """Write one file so that it is whole or absent, durable when this returns."""
    write_partial(path, data)
    publish([path])


def write_partial(path: Path, data: bytes) -> None:
    """Put `data` on disk beside `path`, under its partial name; `publish` gives it its own."""
    partial = partial_path(path)
    require_plain(path)
    with clear_write_errors(path):
        try:
            # O_EXCL after the unlink: a link left under this name must not lead the write elsewhere.
            partial.unlink(missing_ok=True)
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError:
            # On a full disk the half-written file would hold the very space that is missing.
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise


def publish(paths: Iterable[Path]) -> None:
    """Rename the partial files of `paths` onto them and make the renames durable."""
    folders: dict[Path, None] = {}
    for path in paths:
        require_plain(path)
        with clear_write_errors(path):
            os.replace(partial_path(path), path)
        folders[path.parent] = None
    for folder in folders:
        with clear_write_errors(folder):
            sync_folder(folder)


def remove(path: Path) -> None:
    """Remove a file, durably; it is no error if it is not there. Under a partial name a link may go too."""
    if not path.name.endswith(PARTIAL):
        require_plain(path)
    with clear_write_errors(path):
        path.unlink(missing_ok=True)
        sync_folder(path.parent)


def partial_path(path: Path) -> Path:
    """The name under which `path` is written before it is whole."""
    return path.with_name(path.name + PARTIAL)


def sync_folder(folder: Path) -> None:
    """Force a folder's entries to disk, where its file system knows how to."""
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

    def __exit__(self, *_: object) -> None:
        self.release()


_held: weakref.WeakSet[RunLock] = weakref.WeakSet()


def _forget_in_child() -> None:
    """Close inherited locks: a forked worker that outlives its killed parent must not keep the run locked."""
    for lock in list(_held):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
