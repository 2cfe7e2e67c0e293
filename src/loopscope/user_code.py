"""Code of the user's that loopscope calls: what it raises is shown as its own, under one line that says what failed.

The traceback is shortened to the user's frames; those of loopscope and of installed packages are left out.
"""

from __future__ import annotations

import linecache
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from loopscope.errors import LoopscopeError

_NOT_THE_USERS = tuple(
    {str(Path(__file__).parent), *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))}
)


class UserCodeError(LoopscopeError):
    """Code of the user's raised; the cause is what it raised, with the traceback of the user's frames alone."""

    def detail(self) -> str:
        """The shortened traceback; empty where there is none."""
        return "" if self.__cause__ is None else "".join(traceback.format_exception(self.__cause__, chain=False))


@contextmanager
def user_code(call: str, always: bool = False) -> Iterator[None]:
    """What the user's code raises within this block becomes a `UserCodeError`.

    Args:
        call: what was called, and when: the message says that it failed.
        always: whether nothing but the user's code runs here; otherwise an exception in which no frame is the user's
            stays as it is.
    """
    try:
        yield
    except LoopscopeError:
        raise
    except Exception as error:
        frames = _users_frames(error)
        if frames is None and not always:
            raise
        raise UserCodeError(f"{call} failed: {described(error)}") from error.with_traceback(frames)


def described(error: BaseException) -> str:
    """An exception in one line: its type, what it says, and the last of the user's lines that led to it."""
    said = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
    frames = traceback.extract_tb(_users_frames(error))
    if not frames:
        return said
    last = frames[-1]
    code = linecache.getline(last.filename, last.lineno or 0).strip()
    return f"{said} ({last.name} in {last.filename}, line {last.lineno}{code and f': {code}'})"


def _users_frames(error: BaseException) -> TracebackType | None:
    entry, kept = error.__traceback__, []
    while entry is not None:
        if _is_users(entry.tb_frame.f_code.co_filename):
            kept.append(entry)
        entry = entry.tb_next
    found = None
    for entry in reversed(kept):
        found = TracebackType(found, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return found


def _is_users(file: str) -> bool:
    # `<frozen importlib…>` is Python's; a cell of a notebook is `<ipython-input…>` or a file in a temporary folder.
    return not file.startswith((*_NOT_THE_USERS, "<frozen", "<__array_function__", "<string>"))
