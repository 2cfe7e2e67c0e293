"""Stored records as the studies read them: one group of rows per condition, columns as NumPy arrays.

Shapes: N questions of a condition, G = 21 grid scales.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from loopscope.errors import setting
from loopscope.path import (
    GRID,
    PATH_NODES,
    GridOptimum,
    Outcome,
    classify,
    grid_optimum,
)
from loopscope.store import StoredRun, sha256_bytes
from loopscope.store.monitor_log import MonitorLog
from loopscope.studies.conditions import Condition, at, conditions_of, place_of, printable, run_labels

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Counts = NDArray[np.int64]

GRID_SCALES: Floats = np.array(GRID)
ACTION_STRIDE = 5
"""Every fifth grid scale is one of the five actions 0, 0.25, 0.5, 0.75, 1."""
QUARTER = 5
"""Grid index of the quarter step."""


def matrix(lists: pl.Series) -> Floats:
    """Lists of one length as an array with a row for each."""
    width = len(lists[0]) if len(lists) else 0
    return lists.explode().cast(pl.Float64).to_numpy().reshape(len(lists), width)


@dataclass(frozen=True)
class Updates:
    """The `questions` rows of one condition, in the order of the run."""

    condition: Condition
    frame: pl.DataFrame

    def __len__(self) -> int:
        return self.frame.height

    def has(self, *columns: str) -> bool:
        """Whether every row has a value in all of these columns."""
        return all(name in self.frame.columns and not self.frame[name].null_count() for name in columns)

    def has_some(self, column: str) -> bool:
        """Whether any row has a value in this column."""
        return column in self.frame.columns and self.frame[column].null_count() < self.frame.height

    def floats(self, column: str) -> Floats:
        """A column as float64, NaN where it is null."""
        return self.frame[column].cast(pl.Float64).fill_null(np.nan).to_numpy()

    def element(self, column: str, index: int) -> Floats:
        """One element of each list of a column, NaN where the list is null."""
        return self.frame[column].list.get(index).fill_null(np.nan).to_numpy()

    def matrix(self, column: str) -> Floats:
        """A list column as an array with one row per question; every list has the same length."""
        return matrix(self.frame[column])

    @cached_property
    def ids(self) -> list[str]:
        """Example identifiers."""
        return self.frame["example_id"].to_list()

    @cached_property
    def slope(self) -> Floats:
        """A."""
        return self.floats("slope")

    @cached_property
    def quadratic(self) -> Floats:
        """Q."""
        return self.floats("quadratic")

    @cached_property
    def gain(self) -> Floats:
        """ΔU."""
        return self.floats("gain")

    @cached_property
    def outcome(self) -> NDArray[np.int8]:
        """Codes of `loopscope.path.Outcome`."""
        codes: NDArray[np.int8] = classify(self.slope, self.gain)
        return codes

    @property
    def harmful(self) -> Mask:
        """ΔU < 0."""
        return self.gain < 0

    @property
    def finite_step(self) -> Mask:
        """Finite-step failures: ΔU < 0 although A > 0."""
        return np.asarray(self.outcome == Outcome.FINITE_STEP_FAILURE)

    @property
    def primary(self) -> Mask:
        """The paper's primary subset A > 0, Q < 0."""
        return (self.slope > 0) & (self.quadratic < 0)

    @cached_property
    def quadratic_scale(self) -> Floats:
        """α̂."""
        return self.floats("quadratic_scale")

    @cached_property
    def grid_gain(self) -> Floats:
        """φ on the 21-point grid: [N, G]."""
        return self.matrix("grid_gain")

    @cached_property
    def action_gain(self) -> Floats:
        """φ on the five-point action set: [N, 5]."""
        return self.grid_gain[:, ::ACTION_STRIDE]

    @property
    def quarter_gain(self) -> Floats:
        """φ(0.25)."""
        return self.grid_gain[:, QUARTER]

    @cached_property
    def optimum(self) -> GridOptimum:
        """The grid optimum of every path, ties to the smallest scale."""
        return grid_optimum(GRID_SCALES, self.grid_gain)


@dataclass(frozen=True)
class DepthSweep:
    """The utilities of one evaluation set at every stored depth, questions in rows."""

    condition: Condition
    ids: tuple[str, ...]
    depths: tuple[int, ...]
    utility: Floats
    """[N, depths]."""
    correct: Floats | None
    """1 where the chosen option is the right one, [N, depths]; None for solutions."""
    chosen: Counts | None = None
    """The chosen option, [N, depths]; None for solutions."""
    right: Counts | None = None
    """The right option, [N]; None for solutions."""


@dataclass(frozen=True)
class Tokens:
    """The `tokens` rows of one condition's references that the exit policy continues through (all without a gate).

    The reference of an option task is the right option: tokens of the others are no reference positions.
    """

    condition: Condition
    """Its `n` counts the measured questions, whether or not any of their tokens continues."""
    frame: pl.DataFrame
    stored: int
    """Reference positions of the condition, continuing or not."""
    gate: pl.DataFrame | None = None
    """What the exit gate does at each of them: `continues`, `exit_depth`, `exit_depth_fp64`; None without a gate."""

    def floats(self, column: str) -> Floats:
        """A column as float64."""
        return self.frame[column].cast(pl.Float64).to_numpy()


class Records:
    """Everything that studies may ask of some opened runs; tables are read when first needed, and once.

    `logs` are those of monitors, which the study of a training reads.
    """

    def __init__(
        self,
        runs: Sequence[StoredRun],
        logs: Sequence[tuple[Path, MonitorLog]] = (),
    ) -> None:
        self.runs = tuple(runs)
        self.logs = tuple(logs)
        self._labels = run_labels(self.runs)

    def conditions(self) -> Iterator[tuple[StoredRun, Condition]]:
        """Every evaluation set with its run, without an update; labels tell the runs apart."""
        for run, label in zip(self.runs, self._labels, strict=True):
            for condition in conditions_of(run, label):
                yield run, condition

    def run_of(self, condition: Condition) -> StoredRun:
        """The run that a condition is of."""
        return next(run for run in self.runs if place_of(run) == condition.place)

    @cached_property
    def updates(self) -> tuple[Updates, ...]:
        """All conditions with records, in the order of runs, tasks and transitions."""
        return tuple(group for run, condition in self.conditions() for group in _updates(run, condition))

    @cached_property
    def sweeps(self) -> tuple[DepthSweep, ...]:
        """All evaluation sets with utilities at more than one depth."""
        found = (_sweep(run, condition) for run, condition in self.conditions())
        return tuple(sweep for sweep in found if sweep is not None and len(sweep.depths) > 1)

    def tokens(self) -> Iterator[Tokens]:
        """Token rows by condition, of the runs that were measured with them; one task in memory at a time."""
        for run, condition in self.conditions():
            if run.manifest.tokens:
                yield from _tokens(run, condition)

    def nothing(self, reason: str) -> str:
        """Why a study has nothing to show: the reason given, unless the runs hold no records at all."""
        if self.updates or self.sweeps:
            return reason
        return self.no_updates()

    def no_updates(self) -> str:
        """Why there is no update in any of the runs."""
        if self.logs and not self.runs:
            return f"a monitor's log holds means of a training and no question: choose {setting('name', 'training')}"
        if any(run.manifest.transitions for run in self.runs):
            return "these runs hold no records yet: the measuring command given again continues them"
        return f"these runs hold utilities by depth and no update: measure again with {setting('transitions')}"

    def path(self, condition: Condition, question: int) -> tuple[Floats, Floats] | None:
        """Scales and gains of one stored FP64 path, where the run keeps them."""
        run = self.run_of(condition)
        if not run.manifest.paths:
            return None
        row = run.paths.filter(
            of_set(condition), pl.col("transition") == condition.transition, pl.col("row") == question
        ).collect()
        return (np.linspace(0.0, 1.0, PATH_NODES), row["gain"][0].to_numpy()) if row.height else None

    def certificates(self, condition: Condition) -> pl.DataFrame | None:
        """The certificates of a condition's updates, where its run has some."""
        stored = self.run_of(condition).certificates
        if stored is None:
            return None
        rows = stored.filter(of_set(condition), pl.col("transition") == condition.transition)
        # A `Run` names outcomes in the order of their codes.
        rows = rows.sort("row").with_columns(pl.col("outcome").to_physical().cast(pl.Int8))
        return rows if rows.height else None

    def beside(self, table: str, condition: Condition) -> pl.DataFrame | None:
        """The rows of another table about a condition's updates, in the order of the run; None where it has none."""
        run = self.run_of(condition)
        if not any(table == known.name for known in run.manifest.tables()):
            return None
        rows = run.read(table).filter(of_set(condition), pl.col("transition") == condition.transition)
        return rows.sort("row") if rows.height else None

    def inputs(self) -> list[dict[str, object]]:
        """What the numbers come from: each run's manifest digest and the hash of every shard; the hash of a log."""
        logs: list[dict[str, object]] = [
            {"log": printable(path.name), "sha256": sha256_bytes(path.read_bytes())} for path, _ in self.logs
        ]
        runs: list[dict[str, object]] = [
            {
                "run": label,
                "manifest_sha256": run.manifest.digest,
                "shards": {
                    run.layout.shard(shard.table, run.units[index]).relative_to(run.path).as_posix(): shard.sha256
                    for index, record in sorted(run.unit_records.items())
                    for shard in record.shards
                },
            }
            for label, run in zip(self._labels, self.runs, strict=True)
        ]
        return runs + logs


def of_set(condition: Condition) -> pl.Expr:
    """Which rows of a run's table belong to the evaluation set of a condition."""
    return (pl.col("task") == condition.task) & (pl.col("split") == condition.split)


def _updates(run: StoredRun, condition: Condition) -> Iterator[Updates]:
    here = run.records.filter(of_set(condition))
    for transition in run.manifest.transitions:
        rows = here.filter(pl.col("transition") == transition).sort("row")
        if rows.height:
            yield Updates(at(condition, transition, rows.height), rows)


def _sweep(run: StoredRun, condition: Condition) -> DepthSweep | None:
    rows = run.depths.filter(of_set(condition))
    if not rows.height:
        return None
    rows = rows.sort("row", "depth")
    depths = tuple(run.manifest.depths)
    questions = rows.height // len(depths)
    ids = rows["example_id"].to_list()[:: len(depths)]
    return DepthSweep(
        at(condition, None, questions),
        tuple(ids),
        depths,
        rows["utility"].to_numpy().reshape(questions, len(depths)),
        *_choices(run, condition, rows, questions),
    )


def _choices(run: StoredRun, condition: Condition, rows: pl.DataFrame, questions: int) -> tuple[Any, Any, Any]:
    """Whether the chosen option is the right one, the chosen, the right."""
    if condition.kind != "options" or rows["chosen_option"].null_count():
        return None, None, None
    right = run.examples.filter(of_set(condition)).sort("row")["correct_option"].to_numpy()
    chosen = rows["chosen_option"].to_numpy().reshape(questions, -1)
    return np.asarray(chosen == right[:, None], dtype=np.float64), chosen, right


def _tokens(run: StoredRun, condition: Condition) -> Iterator[Tokens]:
    gated = ("continues", "exit_depth", "exit_depth_fp64")
    continues = (pl.col("exit_depth") > pl.col("transition")).alias("continues")
    columns = ("row", "transition", "slope", "quadratic", "gain", "quarter_gain", "quadratic_gain", *gated)
    # One pass over the shards for all transitions: they lie side by side in every shard.
    rows = run.tokens.filter(of_set(condition))
    if condition.kind == "options":
        right = run.examples.lazy().filter(of_set(condition)).select("row", option="correct_option")
        rows = rows.join(right, on=["row", "option"], how="semi", maintain_order="left")
    found = rows.with_columns(continues).select(columns).collect()
    for transition in run.manifest.transitions:
        here = found.filter(pl.col("transition") == transition)
        if here.height:
            measured = at(condition, transition, here["row"].n_unique())
            gate = None if here["exit_depth"].null_count() else here.select(gated)
            yield Tokens(measured, here.filter(pl.col("continues").fill_null(True)), here.height, gate)
