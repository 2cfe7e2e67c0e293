"""Files that a user names, opened with care: regular ones only, and texts of a bounded size."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from loopscope.errors import LoopscopeError


def check_regular(path: str | os.PathLike[str], what: str) -> None:
    """Refuse what is not a file or a link to one: a pipe or a device may never end.

    Raises:
        LoopscopeError: `path` does not exist, cannot be looked at, or is a folder, a pipe, a device.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError as error:
        raise LoopscopeError(f"{what} {path} does not exist; check the path") from error
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise LoopscopeError(f"cannot read {what} {path!r}: {getattr(error, 'strerror', None) or error}") from error
    if stat.S_ISDIR(mode):
        raise LoopscopeError(f"{what} {path} is a directory; name the file in it")
    if not stat.S_ISREG(mode):
        raise LoopscopeError(f"{what} {path} is a pipe or a device; give a regular file")


def read_text(path: str | os.PathLike[str], what: str, most: int) -> str:
    """A text of at most `most` bytes, UTF-8 with or without a byte-order mark.

    Raises:
        LoopscopeError: it is not a regular file, cannot be read, is larger, or is not UTF-8.
    """
    check_regular(path, what)
    try:
        with Path(path).open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise LoopscopeError(f"cannot read {what} {path}: {error.strerror or error}") from error
    if len(content) > most:
        raise LoopscopeError(f"{what} {path} is larger than {most} bytes; is it the right file?")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise LoopscopeError(f"{what} {path} is not UTF-8 (byte {error.start}); save it as UTF-8") from error


MOST_BYTES = 64 * 2**20
"""The largest manifest, record, vocabulary or log of a run that is read; a manifest has some kilobytes."""


def read_regular(path: Path, most: int = MOST_BYTES) -> bytes:
    """The bytes of a regular file; the OSError of any other says why in `strerror`."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(0, "it is not a regular file", str(path))
    if status.st_size > most:
        raise OSError(0, f"it has more than {most >> 20} MiB", str(path))
    return path.read_bytes()
