"""Studies by name, from run directories or opened runs."""

import difflib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from loopscope._arguments import text
from loopscope._errors import LoopscopeError, setting, shown
from loopscope.studies.registry import FIGURES, TABLES, Study

if TYPE_CHECKING:
    from loopscope.stats import Bootstrap
    from loopscope.store import Run
    from loopscope.studies.figures.style import FigureResult
    from loopscope.studies.records import Records
    from loopscope.studies.result import Row, TableResult

Source: TypeAlias = "Run | str | os.PathLike[str]"


def open_records(runs: "Source | Sequence[Source] | Records") -> "Records":
    """The records of one or several runs, opened or by path."""
    from loopscope.store import Run
    from loopscope.studies.records import Records

    if isinstance(runs, Records):
        return runs
    if isinstance(runs, Run | str | os.PathLike):
        runs = [runs]
    if not isinstance(runs, Sequence):
        raise LoopscopeError(f"{shown(runs)} is no run: name folders that `loopscope measure` wrote")
    if not runs:
        raise LoopscopeError("no run given: name at least one folder that `loopscope measure` wrote")
    return Records([run if isinstance(run, Run) else Run(run) for run in runs])


def table(
    name: str, runs: "Source | Sequence[Source] | Records", bootstrap: "Bootstrap | None" = None
) -> "TableResult[Row]":
    """One of the paper's tables, from your own runs.

    Args:
        name: a name from `loopscope studies`, such as `mechanism`.
        runs: run directories or opened runs; several are put into one table.
        bootstrap: resamples, seed and level; the paper's by default.
    """
    return find(name, TABLES).table(open_records(runs), _checked(bootstrap))


def figure(
    name: str, runs: "Source | Sequence[Source] | Records", bootstrap: "Bootstrap | None" = None
) -> "FigureResult":
    """One of the paper's figures, from your own runs; `.save(path)` writes PDF, PNG or SVG."""
    return find(name, FIGURES).figure(open_records(runs), _checked(bootstrap))


def _checked(bootstrap: "Bootstrap | None") -> "Bootstrap | None":
    from loopscope.stats import Bootstrap

    if bootstrap is not None and not isinstance(bootstrap, Bootstrap):
        raise LoopscopeError(f"{setting('bootstrap', bootstrap)} is no loopscope.stats.Bootstrap: give one or None")
    return bootstrap


def find(name: str, studies: dict[str, Study]) -> Study:
    """The study of that name, however dashes and case are written."""
    wanted = text("name", name).strip().lower().replace("_", "-")
    if wanted in studies:
        return studies[wanted]
    kind = next(iter(studies.values())).kind
    close = difflib.get_close_matches(wanted, studies, n=1)
    hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(studies)}"
    raise LoopscopeError(f"there is no {kind} {name!r}: {hint}")
