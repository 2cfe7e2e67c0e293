"""`monitor.jsonl`: what a monitor wrote while a model was trained; its first line says what was watched, and how.

Every further line is an object with `kind` and `step`:

    depth     the mean utility at one depth of one task's questions
    update    everything about one update t → t+1 of one task's questions
    call      the last line of a step: what the measuring took

Next to every mean or share `x` is its standard error over questions, `x_se`. Names are those of the columns of a
run's tables. A training that is resumed appends: of two lines about the same,
the later one holds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopscope.errors import LoopscopeError, setting
from loopscope.limits import read_text

if TYPE_CHECKING:
    import polars as pl

FORMAT, VERSION = "loopscope-monitor", 1
KEYS = {"depth": ("step", "task", "depth"), "update": ("step", "task", "transition"), "call": ("step",)}
"""What names a line of each kind."""
MOST_BYTES = 1 << 30
"""The largest log that is read."""
_LARGEST = 2**63
MAY_CHANGE = frozenset({"loopscope", "every"})
"""What may differ between the header of a log and that of a monitor that appends to it."""


@dataclass(frozen=True)
class MonitorLog:
    """A log that was read, in the order of steps.

    Attributes:
        header: the first line.
        depths: one row per step, task and depth.
        updates: one row per step, task and transition.
        calls: one row per step.
    """

    header: dict[str, Any]
    depths: pl.DataFrame
    updates: pl.DataFrame
    calls: pl.DataFrame


def is_monitor_log(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as such a log does."""
    try:
        if not Path(path).is_file():  # a pipe may never end
            return False
        with Path(path).open("rb") as file:
            header = json.loads(file.readline(1 << 20))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(header, dict) and header.get("format") == FORMAT


def read_monitor_log(path: str | os.PathLike[str]) -> MonitorLog:
    """The rows of a log; a line that was cut off at the end is left out.

    Raises:
        LoopscopeError: the file cannot be read, or is not such a log.
    """
    import polars as pl

    text = read_text(path, "monitor log", MOST_BYTES)
    lines = text[: text.rfind("\n") + 1].splitlines()
    header = _header(lines[0] if lines else "", path)
    found: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {kind: {} for kind in KEYS}
    for number, line in enumerate(lines[1:], 2):
        try:
            row = json.loads(line)
            kind = row.pop("kind")
            if not all(map(_is_plain, row.values())):
                raise ValueError("no measured value")
            found[kind][tuple(row[name] for name in KEYS[kind])] = row
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise LoopscopeError(f"line {number} of {path} is not one of a monitor log: delete the line") from error
    frames = {}
    for kind, rows in found.items():
        try:
            for name in next(iter(rows.values()), {}):
                values = [row.get(name) for row in rows.values()]
                if len({isinstance(value, str) for value in values if value is not None}) > 1:
                    raise TypeError(f"{name} holds texts and numbers")
            frame = pl.DataFrame(list(rows.values()), infer_schema_length=None)
            # A column without a single number (no failure at any step) is one of numbers all the same.
            frame = frame.with_columns(pl.selectors.by_dtype(pl.Null).cast(pl.Float64)) if rows else frame
            frames[kind] = frame.sort(KEYS[kind], maintain_order=True) if rows else frame
        except (pl.exceptions.PolarsError, TypeError, OverflowError) as error:
            raise LoopscopeError(f"the lines {kind!r} of {path} disagree in the types of their values") from error
    return MonitorLog(header, frames["depth"], frames["update"], frames["call"])


def _is_plain(value: object) -> bool:
    """Whether a line may hold a value: a text, a finite number of a plausible size, none, or a list of those."""
    if isinstance(value, list):
        return all(not isinstance(each, list) and _is_plain(each) for each in value)
    return value is None or isinstance(value, str) or (isinstance(value, int | float) and abs(value) <= _LARGEST)


def _header(line: str, path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise LoopscopeError(f"{path} is not a monitor's log: its first line must say {FORMAT!r}")
    if header.get("version") != VERSION:
        raise LoopscopeError(
            f"{path} is a monitor log of version {header.get('version')}, and this loopscope reads {VERSION}: "
            "use the loopscope that wrote it"
        )
    return header


class MonitorLogWriter:
    """Appends the lines of a monitor to a file, those of one step at once.

    The file is opened for every step, so that nothing is held open through a training. A log that is there already is
    continued if it is about the same; a line that was cut off is removed. Every other process than the first has its
    rank in the name of its file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._begun = False

    def write(self, header: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> None:
        """The rows of one step; before the first, the header."""
        path = self._of(header)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            whole = "" if self._begun else _whole_lines(path, header)
            with path.open("a", encoding="utf-8") as file:
                if not self._begun:
                    file.truncate(len(whole.encode()))
                    file.write("" if whole else _line(header))
                    self._begun = True
                file.write("".join(_line(row) for row in rows))
        except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
            reason = getattr(error, "strerror", None) or error
            raise LoopscopeError(f"cannot write {path}: {reason}; give another {setting('log')}") from error

    def check(self, header: Mapping[str, Any]) -> None:
        """Refuse a file that is there and is the log of something else; nothing is written."""
        _whole_lines(self._of(header), header)

    def _of(self, header: Mapping[str, Any]) -> Path:
        path, rank = self._path, header["rank"]
        return path.with_name(f"{path.stem}.rank{rank}{path.suffix}") if rank else path


def _whole_lines(path: Path, header: Mapping[str, Any]) -> str:
    """What a file holds up to its last whole line; nothing where it has yet to begin."""
    if not path.exists() or (path.is_file() and not path.stat().st_size):
        return ""
    text = read_text(path, "monitor log", MOST_BYTES)
    whole = text[: text.rfind("\n") + 1]
    if not whole and _is_cut_off(text):
        return ""
    there = _header(whole.partition("\n")[0], path)
    wanted = json.loads(_line(header))
    other = [name for name in sorted({*there, *wanted} - MAY_CHANGE) if there.get(name) != wanted.get(name)]
    if other:
        raise LoopscopeError(
            f"{path} is the log of another monitor (its {other[0]} is {there.get(other[0])}, not "
            f"{wanted.get(other[0])}): give another {setting('log')}, or delete it"
        )
    return whole


def _is_cut_off(text: str) -> bool:
    """Whether a text is the beginning of a header and nothing more."""
    begin = f'{{"format": "{FORMAT}"'
    return text.startswith(begin) or begin.startswith(text)


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"
