"""The one exception that users see as a line instead of a traceback, and how it names what the user set.

Python and the command line take the same settings and meet the same errors. A message names a setting with `setting`,
which writes it as whoever is being answered does: `unit_size=0` for a caller in Python, `--unit-size 0` for a command.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager

LONGEST_SHOWN = 80
"""Characters of a value that a message repeats."""

_FLAGS = {"progress_style": "progress"}
"""Settings whose flag has another name."""

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
    flag = "--" + _FLAGS.get(name, name).replace("_", "-")
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
    """Whether settings are named as flags at the moment; another process that works for this one is told."""
    return _for_command_line
