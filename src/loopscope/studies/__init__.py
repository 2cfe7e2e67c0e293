"""Each table and figure of the paper as a pure function of stored records.

from loopscope.studies import figure, table

print(table("mechanism", ["runs/first"]))
figure("scale-prediction", ["runs/first"]).save("scale.pdf")
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import loopscope.studies.topics  # noqa: F401
from loopscope.errors import LoopscopeError, setting, shown, text
from loopscope.monitor_log import is_monitor_log, read_monitor_log
from loopscope.stats import Bootstrap
from loopscope.store import StoredRun
from loopscope.store.run import runs_at
from loopscope.studies.declare import TABLES, Table, TableResult
from loopscope.studies.figures import FIGURES, FigureStudy
from loopscope.studies.records import Records

if TYPE_CHECKING:
    from loopscope.studies.figures import FigureResult

__all__ = ["FIGURES", "TABLES", "Source", "Study", "figure", "find", "open_records", "table"]

Study: TypeAlias = Table | FigureStudy
S = TypeVar("S", bound=Study)
Source: TypeAlias = StoredRun | str | os.PathLike[str]


def open_records(runs: Source | Sequence[Source] | Records) -> Records:
    """The records of runs, opened or by path; a folder of runs stands for all of them, a file is a monitor's log."""
    if isinstance(runs, Records):
        return runs
    if isinstance(runs, StoredRun | str | os.PathLike):
        runs = [runs]
    if not isinstance(runs, Sequence):
        raise LoopscopeError(f"{shown(runs)} is not a run: name folders that `loopscope measure` wrote")
    if not runs:
        raise LoopscopeError("no run given: name at least one folder that `loopscope measure` wrote")
    opened: list[StoredRun] = []
    logs = []
    for run in runs:
        if isinstance(run, StoredRun):
            opened.append(run)
        elif is_monitor_log(path := text("runs", run)):
            logs.append((Path(path), read_monitor_log(path)))
        else:
            opened += map(StoredRun, runs_at(path))
    return Records(opened, logs)


def table(name: str, runs: Source | Sequence[Source] | Records, bootstrap: Bootstrap | None = None) -> TableResult:
    """One of the paper's tables, from your own runs.

    Args:
        name: a name from `loopscope studies`, such as `mechanism`.
        runs: run directories or opened runs; several are put into one table.
        bootstrap: resamples, seed and level; the paper's by default.
    """
    return find(name, TABLES).table(open_records(runs), _checked(bootstrap))


def figure(name: str, runs: Source | Sequence[Source] | Records, bootstrap: Bootstrap | None = None) -> FigureResult:
    """One of the paper's figures, from your own runs; `.save(path)` writes PDF, PNG or SVG.

    Args:
        name: a name from `loopscope studies`, such as `scale-prediction`.
        runs: run directories or opened runs.
        bootstrap: resamples, seed and level; the paper's by default.
    """
    return find(name, FIGURES).figure(open_records(runs), _checked(bootstrap))


def _checked(bootstrap: Bootstrap | None) -> Bootstrap | None:
    if bootstrap is not None and not isinstance(bootstrap, Bootstrap):
        raise LoopscopeError(f"{setting('bootstrap', bootstrap)} is not a loopscope.stats.Bootstrap: give one or None")
    return bootstrap


def find(name: str, studies: Mapping[str, S]) -> S:
    """The study of that name, however dashes and case are written."""
    wanted = text("name", name).strip().lower().replace("_", "-")
    if wanted in studies:
        return studies[wanted]
    kind = next(iter(studies.values())).kind
    close = difflib.get_close_matches(wanted, studies, n=1)
    hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(studies)}"
    raise LoopscopeError(f"there is no {kind} {name!r}: {hint}")
