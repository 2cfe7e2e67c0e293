"""The one exception that users see as a line instead of a traceback, and how it names what the user set.

Python and the command line take the same settings and meet the same errors. A message names a setting with `setting`,
which writes it as whoever is being answered does: `unit_size=0` for a caller in Python, `--unit-size 0` for a command.

Code of the user's that loopscope calls (`user_code`): what it raises is shown as its own, under one line that says what
failed, with a traceback of the user's frames alone.

Checks of single arguments, shared by everything that takes some: a name, a choice, a switch, a number, ranges.

Each returns the plain value or raises one line that names the argument in the caller's words. Numbers and ranges are
written as `1-4,8`; blanks may stand around a number, never inside one.
"""

from __future__ import annotations

import difflib
import linecache
import operator
import os
import shlex
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

LONGEST_SHOWN = 80
"""Characters of a value that a message repeats."""

_for_command_line = False


class LoopscopeError(Exception):
    """A mistake that the user can mend: one line that says what is wrong and what to do.

    The command line prints the message and exits with 2. Every other exception is a bug of ours and
    keeps its traceback.
    """


class _Unset:
    """No value: the setting alone is named."""


def setting(name: str, value: object = _Unset) -> str:
    """A setting, or a setting with a value, in the words of whoever is being answered.

    >>> setting("unit_size"), setting("unit_size", 0), setting("level", "full"), setting("tokens", True)
    ('unit_size=', 'unit_size=0', "level='full'", 'tokens=True')
    >>> with command_line_words():
    ...     setting("unit_size"), setting("unit_size", 0), setting("level", "full"), setting("tokens", True)
    ('--unit-size', '--unit-size 0', '--level full', '--tokens')
    """
    if not _for_command_line:
        return f"{name}=" if value is _Unset else f"{name}={shown(value)}"
    flag = "--" + name.replace("_", "-")
    if value is _Unset or value is True:
        return flag
    return f"{flag} {_cut(shlex.quote(value)) if isinstance(value, str) else shown(value)}"


def shown(value: object) -> str:
    """A value as Python writes it, cut where it is long.

    >>> shown(5), shown("x" * 100)[-3:], shown(10**5000)
    ('5', 'xx…', 'a number of thousands of digits')
    """
    try:
        return _cut(repr(value))
    except ValueError:  # Python writes no integer of more than 4300 digits
        return "a number of thousands of digits"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 1] + "…"


@contextmanager
def command_line_words(wanted: bool = True) -> Iterator[None]:
    """Within this block settings are named as flags."""
    global _for_command_line
    before, _for_command_line = _for_command_line, wanted
    try:
        yield
    finally:
        _for_command_line = before


def answers_command_line() -> bool:
    """Whether settings are named as flags at the moment; another process that works for this one is set as well."""
    return _for_command_line


LARGEST_SEED = 2**63 - 1
"""The largest seed that every random generator takes."""


def text(name: str, given: object) -> str:
    """A name or a path."""
    if isinstance(given, os.PathLike):
        given = os.fspath(given)
    if not isinstance(given, str):
        kind = type(given).__name__
        raise LoopscopeError(f"{setting(name)} takes a name or a path as text, not {shown(given)} (a {kind})")
    if not given.strip():
        raise LoopscopeError(f"{setting(name, given)} is empty: give a name or a path")
    if "\0" in given or given != given.encode(errors="replace").decode():
        raise LoopscopeError(f"{setting(name)} {given!a:.80} holds bytes that are not UTF-8 text: use another name")
    return given


def optional_text(name: str, given: object) -> str | None:
    """A name or a path, or nothing."""
    return None if given is None else text(name, given)


def choice(name: str, given: object, known: Sequence[str]) -> str:
    """One of a few words."""
    if isinstance(given, str) and given in known:
        return str(given)
    near = difflib.get_close_matches(given[:80], known, n=1) if isinstance(given, str) else []
    hint = f"did you mean {near[0]}?" if near else f"choose {', '.join(known)}"
    raise LoopscopeError(f"{setting(name, given)} is not known: {hint}")


def switch(name: str, given: bool) -> bool:
    """Yes or no."""
    if not isinstance(given, bool):
        raise LoopscopeError(f"{setting(name, given)} is neither True nor False: give one of them")
    return given


def whole(name: str, given: int, least: int, most: int) -> int:
    """A whole number within bounds."""
    number = index(given)
    if number is None:
        raise LoopscopeError(f"{setting(name, given)} is not a whole number: give one from {least:,} to {most:,}")
    if not least <= number <= most:
        problem = "too small" if number < least else "too large"
        raise LoopscopeError(f"{setting(name, number)} is {problem}: give a number from {least:,} to {most:,}")
    return number


def index(given: object) -> int | None:
    """An integer of any library; True and 2.0 are none."""
    if isinstance(given, bool):
        return None
    try:
        return operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        return None


_MOST_DIGITS = 18


def parse_number(text: str) -> int | None:
    """A whole number of ASCII digits; None for anything else, also for one that no 64-bit integer holds.

    >>> parse_number(" 12 "), parse_number("1 2"), parse_number("-1"), parse_number("9" * 19)
    (12, None, None, None)
    """
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None


def parse_ranges(text: str, name: str, *, largest: int, most: int) -> tuple[int, ...]:
    """Numbers up to `largest` and ranges of them, both ends included, as they are written; at most `most` in all.

    >>> parse_ranges("1-4, 8", "depths", largest=100, most=100)
    (1, 2, 3, 4, 8)
    """
    ranges = []
    for entry in text.split(","):
        first, dash, last = entry.partition("-")
        start = parse_number(first)
        stop = parse_number(last) if dash else start
        if start is None or stop is None:
            if all(end.isascii() and end.strip().isdecimal() for end in ((first, last) if dash else (first,))):
                raise LoopscopeError(f"{setting(name, text)}: {shown(entry)} is too large: {largest:,} is the largest")
            raise LoopscopeError(
                f"{setting(name, text)}: {shown(entry)} is not a number or a range of numbers: write e.g. 1-8,12"
            )
        if stop < start:
            raise LoopscopeError(f"{setting(name, text)}: {shown(entry)} runs backwards: write {stop}-{start}")
        if stop > largest:
            raise LoopscopeError(f"{setting(name, text)}: {stop} is too large: {largest:,} is the largest")
        ranges.append(range(start, stop + 1))
    if sum(map(len, ranges)) > most:
        raise LoopscopeError(f"{setting(name, text)} names more than {most:,} numbers: name fewer, each once")
    return tuple(number for numbers in ranges for number in numbers)


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
