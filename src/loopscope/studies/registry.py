"""All studies by name: what each shows, where its function is (imported when first used), and how to call it."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from loopscope.errors import LoopscopeError, setting, shown, text

if TYPE_CHECKING:
    from loopscope.stats import Bootstrap
    from loopscope.store import StoredRun
    from loopscope.studies.figures.style import FigureResult
    from loopscope.studies.records import Records
    from loopscope.studies.result import Row, TableResult


FIGURE_FORMATS = ("pdf", "png", "svg")
EXTRA = ("matplotlib",)
"""Libraries that only figures need; measuring, tables and the report do without them."""


@contextmanager
def studies_extra() -> Iterator[None]:
    """Imports of what comes with `loopscope[studies]`: a missing library is the user's to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in EXTRA:
            raise
        raise LoopscopeError(f"figures need {library}: pip install 'loopscope[studies]'") from error


@dataclass(frozen=True)
class Study:
    """One table or figure."""

    name: str
    kind: str
    """`table` or `figure`."""
    paper: str
    """LaTeX label of the table, figure or section of the paper that it reproduces."""
    summary: str
    """One line."""
    needs: str
    """What a run must hold: a level of measurement, or an option of `measure`."""
    module: str
    """Where its function is, under the study's name."""

    @property
    def function(self) -> Callable[..., Any]:
        """The study itself."""
        with studies_extra():
            found: Callable[..., Any] = getattr(import_module(self.module), self.name.replace("-", "_"))
        return found

    def table(self, records: Records, bootstrap: Bootstrap | None = None) -> TableResult[Row]:
        """The finished table."""
        result: TableResult[Row] = self.function(records, bootstrap)
        return result

    def figure(self, records: Records, bootstrap: Bootstrap | None = None) -> FigureResult:
        """The finished figure."""
        result: FigureResult = self.function(records, bootstrap)
        return result


_SHARED = {
    "flips": ("settling",),
    "interventions": ("contraction", "quadratic-intervention"),
    "mechanism": ("exact-kl", "failure-shares"),
    "optima": ("optimum-refinement", "refined-optima"),
    "path_shape": ("oracles", "path-curvature", "progress-boundary"),
    "scale_bounds": ("bound-selected", "integrated-bounds"),
    "token_failures": ("tokens",),
}
"""Tables in a module that does not have their name."""
_MODULES = {name: module for module, names in _SHARED.items() for name in names}


def _table(name: str, paper: str, needs: str, summary: str) -> Study:
    module = _MODULES.get(name, name.replace("-", "_"))
    return Study(name, "table", paper, summary, needs, f"loopscope.studies.tables.{module}")


def _figure(name: str, paper: str, needs: str, summary: str) -> Study:
    module = name.replace("-", "_")
    return Study(name, "figure", paper, summary, needs, f"loopscope.studies.figures.{module}")


TABLES: dict[str, Study] = {
    study.name: study
    for study in (
        _table("mechanism", "tab:mechanism-matrix", "quick", "finite-step failures; A and A+Q against the gain"),
        _table("failure-shares", "tab:mechanism-intervals", "quick", "failure shares with intervals, margin counts"),
        _table("depth-coverage", "tab:evaluation-coverage", "quick", "best depth and first running-best decline"),
        _table("transition-selection", "app:exp-protocol", "quick", "earliest consecutive decline with its interval"),
        _table("option-responses", "app:exp-coverage", "quick", "response imbalance of option tasks by depth"),
        _table("exact-kl", "tab:exact-kl", "grid", "the exact endpoint correction, computed independently"),
        _table("diagnostics", "tab:diagnostic-ranking", "grid", "state, output and geometry signals: Spearman, AUROC"),
        _table("scale-prediction", "tab:step-prediction", "grid", "predicted scale against the grid optimum, regrets"),
        _table("progress-boundary", "tab:progress-boundary", "grid", "quadratic root against the observed crossing"),
        _table("path-curvature", "app:exp-boundary", "grid", "curvature along the path"),
        _table("contraction", "fig:contraction", "grid", "quarter-step recovery of finite-step failures"),
        _table(
            "quadratic-intervention", "tab:quadratic-intervention", "grid", "quadratic and quarter step, BF16 states"
        ),
        _table("exact-recovery", "tab:exact-recovery", "grid", "recovery on rounded states, exact ones beside them"),
        _table("interventions", "tab:interventions-main", "grid", "quadratic and bound-selected steps at a glance"),
        _table("transitions", "tab:hellaswag-transitions", "grid", "option tasks, transition by transition"),
        _table("tokens", "tab:native-continue", "--tokens", "token-level failures and recovery, clustered intervals"),
        _table("gate-agreement", "app:native-continue", "--tokens", "the exit gate's coverage, and FP64's exits"),
        _table("oracles", "tab:oracle-comparison", "grid", "what intermediate scales add to choosing an end"),
        _table("refined-optima", "tab:fp64-path-prediction", "full", "predicted scale against refined FP64 optima"),
        _table("bound-selected", "tab:curvature-selected-scale", "full", "scale from the curvature bound"),
        _table("scale-bounds", "tab:cloud-bound-comparison", "full", "global, integrated and signed scale bounds"),
        _table("integrated-bounds", "tab:integrated-bound-distribution", "full", "distribution of integrated bounds"),
        _table("optimum-refinement", "tab:bound-reference-refinement", "full", "errors that a signed bound misses"),
        _table("certificates", "tab:certificates", "--certify", "verdicts that no rounding can overturn"),
        _table("flips", "tab:flips", "--trace", "how often a loop changes the likeliest token, for better or worse"),
        _table("settling", "tab:settling", "--trace", "loops until the likeliest token stays; right then wrong"),
        _table("longer-steps", "tab:longer-steps", "--scales-to", "steps that were too short: best scales beyond 1"),
        _table("training", "tab:training", "several steps", "outcomes, gains and best depth over a training"),
        _table("control", "app:geometry-adaptive", "--trace", "exit rules, scales and ceilings at equal cost"),
        _table("derivative-checks", "app:exp-protocol", "grid", "derivatives computed in two ways"),
    )
}

FIGURES: dict[str, Study] = {
    study.name: study
    for study in (
        _figure("concept", "fig:intro-concept", "grid", "one finite-step failure and its shorter step"),
        _figure("direction-progress", "fig:direction-progress", "quick", "slope against full-step gain by outcome"),
        _figure("scale-prediction", "fig:scale-prediction", "grid", "example paths, predicted scales, regrets"),
        _figure("contraction", "fig:contraction", "grid", "quarter-step recovery with intervals"),
        _figure("longer-steps", "tab:longer-steps", "--scales-to", "gain over scales beyond 1, and best scales"),
        _figure("control", "app:geometry-adaptive", "--trace", "utility over cost, with ceilings"),
        _figure("depth-curves", "app:exp-coverage", "quick", "utility over depth, declines marked"),
        _figure("flips", "fig:flips", "--trace", "share right after each loop, and what each loop flipped"),
        _figure("training", "fig:training", "several steps", "outcomes, gains and best depth over a training"),
    )
}


Source: TypeAlias = "StoredRun | str | os.PathLike[str]"


def open_records(runs: Source | Sequence[Source] | Records) -> Records:
    """The records of runs, opened or by path; a folder of runs stands for all of them, a file is a monitor's log."""
    from loopscope.store import StoredRun
    from loopscope.store.monitor_log import is_monitor_log, read_monitor_log
    from loopscope.store.run import runs_at
    from loopscope.studies.records import Records

    if isinstance(runs, Records):
        return runs
    if isinstance(runs, StoredRun | str | os.PathLike):
        runs = [runs]
    if not isinstance(runs, Sequence):
        raise LoopscopeError(f"{shown(runs)} is no run: name folders that `loopscope measure` wrote")
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


def table(
    name: str,
    runs: Source | Sequence[Source] | Records,
    bootstrap: Bootstrap | None = None,
) -> TableResult[Row]:
    """One of the paper's tables, from your own runs.

    Args:
        name: a name from `loopscope studies`, such as `mechanism`.
        runs: run directories or opened runs; several are put into one table.
        bootstrap: resamples, seed and level; the paper's by default.
    """
    return find(name, TABLES).table(open_records(runs), _checked(bootstrap))


def figure(
    name: str,
    runs: Source | Sequence[Source] | Records,
    bootstrap: Bootstrap | None = None,
    *,
    width: str = "two",
    style: str | os.PathLike[str] | None = None,
) -> FigureResult:
    """One of the paper's figures, from your own runs; `.save(path)` writes PDF, PNG or SVG.

    Args:
        name: a name from `loopscope studies`, such as `scale-prediction`.
        runs: run directories or opened runs.
        bootstrap: resamples, seed and level; the paper's by default.
        width: for `one` (3.3 inches) or `two` (6.8 inches) columns of a paper.
        style: a style file of matplotlib, whose settings win over loopscope's.
    """
    study = find(name, FIGURES)
    with studies_extra():
        from loopscope.studies.figures.style import drawn_as
    with drawn_as(width, style):
        return study.figure(open_records(runs), _checked(bootstrap))


def _checked(bootstrap: Bootstrap | None) -> Bootstrap | None:
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
