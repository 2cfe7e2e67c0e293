"""Limits for what comes from somebody else: regular files only, texts of a bounded size, code of a bounded time."""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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


class TimeLimitError(Exception):
    """The code within `time_limit` took too long."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises `TimeLimitError` in this thread after some seconds.

    In the main thread a signal does it, which interrupts a regular expression, too; elsewhere a call into compiled code
    is not interrupted.
    """
    in_main = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    unused = (signal.SIG_DFL, (0.0, 0.0))
    if in_main and (signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)) == unused:
        yield from _by_signal(seconds)
    else:
        yield from _by_thread(seconds)


def _by_signal(seconds: float) -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise TimeLimitError

    signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _by_thread(seconds: float) -> Iterator[None]:
    thread, lock, running = threading.get_ident(), threading.Lock(), True

    def interrupt() -> None:
        with lock:
            if running:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(TimeLimitError))

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            running = False
        timer.cancel()
