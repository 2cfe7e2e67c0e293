"""Stored records as the studies read them: one group of rows per condition, columns as NumPy arrays.

Shapes: N questions of a condition, G = 21 grid scales, P reference positions, T loops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from loopscope.errors import setting
from loopscope.monitor_log import MonitorLog
from loopscope.path import GRID, PATH_NODES, GridOptimum, Outcome, classify, endpoint_prediction, grid_optimum
from loopscope.store import StoredRun, sha256_bytes
from loopscope.store.schema import ends_of
from loopscope.studies.conditions import Condition, at, conditions_of, place_of, printable, run_labels

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Counts = NDArray[np.int64]

GRID_SCALES: Floats = np.array(GRID)
QUARTER = 5  # grid index of the quarter step


def matrix(lists: pl.Series, width: int = 0) -> Floats:
    """Lists of one length as an array with a row for each; `width` where there may be none."""
    width = len(lists[0]) if len(lists) else width
    return lists.explode().cast(pl.Float64).to_numpy().reshape(len(lists), width)


def largest(values: Floats) -> float | None:
    """The largest without its sign; None of nothing."""
    return float(np.abs(values).max()) if values.size else None


@dataclass(frozen=True, eq=False)
class Updates:
    """The `questions` rows of one condition, in the order of the run."""

    condition: Condition
    frame: pl.DataFrame
    records: Records = field(repr=False, compare=False)

    def __len__(self) -> int:
        return self.frame.height

    def where(self, inside: Mask) -> Updates:
        """The rows of a population."""
        return replace(self, frame=self.frame.filter(pl.Series(inside, dtype=pl.Boolean)))

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

    def values(self, column: str) -> Floats:
        """The values that a column has, without nulls; none where the run lacks it altogether."""
        found = self.floats(column) if self.has_some(column) else np.empty(0)
        return np.asarray(found[~np.isnan(found)])

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
    def predicted(self) -> Floats:
        """A + Q, the predicted endpoint gain."""
        return np.asarray(endpoint_prediction(self.slope, self.quadratic))

    @cached_property
    def quadratic_scale(self) -> Floats:
        """α̂."""
        return self.floats("quadratic_scale")

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

    @property
    def right_signs(self) -> dict[str, Mask]:
        """Whether the slope alone, and slope and curvature, have the sign of the gain."""
        predictions = {"sign_slope": self.slope, "sign_quadratic": self.predicted}
        return {name: np.sign(values) == np.sign(self.gain) for name, values in predictions.items()}

    @cached_property
    def grid_gain(self) -> Floats:
        """φ on the 21-point grid: [N, G]."""
        return matrix(self.frame["grid_gain"], len(GRID))

    @property
    def quarter_gain(self) -> Floats:
        """φ(0.25)."""
        return self.grid_gain[:, QUARTER]

    @cached_property
    def optimum(self) -> GridOptimum:
        """The grid optimum of every path, ties to the smallest scale."""
        return grid_optimum(GRID_SCALES, self.grid_gain)

    def other_table(self, name: str) -> pl.DataFrame:
        """The rows of another table about these updates, in the order of the run."""
        found = self.records.other_table(name, self.condition)
        assert found is not None, f"a population without the table {name}"
        return found

    @property
    def clarity(self) -> Floats:
        """How visible each finite-step failure is: min(a, b)² / max(a, b) of its rise a and its fall b, 0 of others."""
        if self.has("grid_gain"):
            rise = self.grid_gain.max(axis=1, initial=0.0)
        else:
            rise = self.quadratic_scale * (self.slope + self.quadratic * self.quadratic_scale)
        rise, fall = np.maximum(rise, 0.0), np.maximum(-self.gain, 0.0)
        largest = np.maximum(rise, fall)
        clear = np.divide(np.minimum(rise, fall) ** 2, largest, out=np.zeros_like(fall), where=largest > 0)
        return np.asarray(np.where(self.finite_step, clear, 0.0))

    @cached_property
    def sweep(self) -> DepthSweep | None:
        """The depth sweep of the same questions, where the run has one."""
        return next((each for each in self.records.sweeps if each.condition.same_set(self.condition)), None)


@dataclass(frozen=True)
class DepthSweep:
    """The utilities of one evaluation set at every stored depth.

    Attributes:
        condition: the evaluation set.
        ids: of its questions.
        depths: that are stored.
        utility: [N, depths].
        chosen: the chosen option, [N, depths]; None for solutions.
        right: the right option, [N]; None for solutions.
    """

    condition: Condition
    ids: tuple[str, ...]
    depths: tuple[int, ...]
    utility: Floats
    chosen: Counts | None = None
    right: Counts | None = None

    @property
    def correct(self) -> Floats | None:
        """1 where the chosen option is the right one, [N, depths]; None for solutions."""
        if self.chosen is None or self.right is None:
            return None
        return np.asarray(self.chosen == self.right[:, None], dtype=np.float64)


@dataclass(frozen=True)
class Tokens:
    """The `tokens` rows of one condition's references that the exit policy continues through (all without a gate).

    The reference of an option task is the right option: tokens of the others are no reference positions.

    Attributes:
        condition: its `n` counts the measured questions, whether or not any of their tokens continues.
        frame: the rows.
        stored: reference positions of the condition, continuing or not.
        gate: what the exit gate does at each of them (`continues`, `exit_depth`, `exit_depth_fp64`); None without one.
    """

    condition: Condition
    frame: pl.DataFrame
    stored: int
    gate: pl.DataFrame | None = None

    def floats(self, column: str) -> Floats:
        """A column as float64."""
        return self.frame[column].cast(pl.Float64).to_numpy()


class Records:
    """Everything that studies may ask of some opened runs; tables are read when first needed, and once.

    `logs` are those of monitors, which the study of a training reads. `models` are the published models that the
    weights of some runs are said to be, by the runs' paths.
    """

    def __init__(
        self,
        runs: Sequence[StoredRun],
        logs: Sequence[tuple[Path, MonitorLog]] = (),
        models: Mapping[str, str] | None = None,
    ) -> None:
        self.runs = tuple(runs)
        self.logs = tuple(logs)
        self._models = models or {}
        self._labels = run_labels(self.runs)

    def conditions(self) -> Iterator[tuple[StoredRun, Condition]]:
        """Every evaluation set with its run, without an update; labels tell the runs apart."""
        for run, label in zip(self.runs, self._labels, strict=True):
            for condition in conditions_of(run, label, self._models.get(place_of(run), "")):
                yield run, condition

    def run_of(self, condition: Condition) -> StoredRun:
        """The run that a condition is of."""
        return next(run for run in self.runs if place_of(run) == condition.place)

    @cached_property
    def updates(self) -> tuple[Updates, ...]:
        """All conditions with records, in the order of runs, tasks and transitions."""
        found = []
        for run, condition in self.conditions():
            here = run.records.filter(of_set(condition)).sort("row")
            for transition in run.manifest.transitions:
                rows = here.filter(pl.col("transition") == transition)
                found += [Updates(at(condition, transition, rows.height), rows, self)] if rows.height else []
        return tuple(found)

    def only(self, chosen: Sequence[Updates]) -> Records:
        """The same records with some of their updates, in this order."""
        found = Records(self.runs, self.logs, self._models)
        found.__dict__["updates"] = tuple(chosen)
        return found

    @cached_property
    def sweeps(self) -> tuple[DepthSweep, ...]:
        """All evaluation sets with utilities at more than one depth."""
        several = ((run, condition) for run, condition in self.conditions() if len(run.manifest.depths) > 1)
        found = (_sweep(run, condition) for run, condition in several)
        return tuple(sweep for sweep in found if sweep.ids)

    def tokens(self) -> Iterator[Tokens]:
        """Token rows by condition, of the runs that were measured with them; one task in memory at a time."""
        for run, condition in self.conditions():
            if run.manifest.tokens:
                yield from _tokens(run, condition)

    def nothing(self, reason: str) -> str:
        """Why a study has nothing to show: the reason given, unless the runs hold no records at all."""
        return reason if self.updates or self.sweeps else self.no_updates()

    def no_updates(self) -> str:
        """Why there is no update in any of the runs."""
        if self.logs and not self.runs:
            return f"a monitor's log holds means of a training and no question: choose {setting('name', 'training')}"
        if any(run.manifest.transitions for run in self.runs):
            return "these runs hold no records yet: the measuring command given again continues them"
        return f"these runs hold no updates: measure with {setting('transitions', 4)}"

    def path(self, condition: Condition, question: int) -> tuple[Floats, Floats] | None:
        """Scales and gains of one stored FP64 path, where the run keeps them."""
        run = self.run_of(condition)
        if not run.manifest.paths:
            return None
        row = run.paths.filter(of_update(condition), pl.col("row") == question).collect()
        return (np.linspace(0.0, 1.0, PATH_NODES), row["gain"][0].to_numpy()) if row.height else None

    def other_table(self, table: str, condition: Condition) -> pl.DataFrame | None:
        """The rows of another table about a condition's updates, in the order of the run; None where it has none."""
        run = self.run_of(condition)
        if not has_table(run, table):
            return None
        rows = run.read(table).filter(of_update(condition)).sort("row")
        if "outcome" in rows.columns:  # a `Run` names outcomes, in the order of their codes
            rows = rows.with_columns(pl.col("outcome").to_physical().cast(pl.Int8))
        return rows if rows.height else None

    def inputs(self) -> list[dict[str, object]]:
        """What the numbers come from: each run's manifest digest and the hash of every shard; the hash of a log."""
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
        return runs + [
            {"log": printable(path.name), "sha256": sha256_bytes(path.read_bytes())} for path, _ in self.logs
        ]


def of_set(condition: Condition) -> pl.Expr:
    """Which rows of a run's table belong to the evaluation set of a condition."""
    return (pl.col("task") == condition.task) & (pl.col("split") == condition.split)


def of_update(condition: Condition) -> pl.Expr:
    """Which rows belong to its update."""
    return of_set(condition) & (pl.col("transition") == condition.transition)


def has_table(run: StoredRun, name: str) -> bool:
    """Whether a run holds a table."""
    return any(table.name == name for table in run.manifest.tables())


def _sweep(run: StoredRun, condition: Condition) -> DepthSweep:
    rows, depths = run.depths.filter(of_set(condition)).sort("row", "depth"), tuple(run.manifest.depths)
    ids = tuple(rows["example_id"].to_list()[:: len(depths)])
    chosen = right = None
    if condition.kind == "options" and not rows["chosen_option"].null_count():
        chosen = rows["chosen_option"].to_numpy().reshape(len(ids), len(depths))
        right = run.examples.filter(of_set(condition)).sort("row")["correct_option"].to_numpy()
    utility = rows["utility"].to_numpy().reshape(len(ids), len(depths))
    return DepthSweep(at(condition, None, len(ids)), ids, depths, utility, chosen, right)


def _of_references(run: StoredRun, condition: Condition, rows: pl.LazyFrame) -> pl.LazyFrame:
    """The rows of a table by token that are about the evaluation set's references."""
    rows = rows.filter(of_set(condition))
    if condition.kind != "options":
        return rows
    right = run.examples.lazy().filter(of_set(condition)).select("row", option="correct_option")
    return rows.join(right, on=["row", "option"], how="semi", maintain_order="left")


def _tokens(run: StoredRun, condition: Condition) -> Iterator[Tokens]:
    gated = ("continues", "exit_depth", "exit_depth_fp64")
    continues = (pl.col("exit_depth") > ends_of(pl.col("transition"))[0]).alias("continues")
    columns = ("row", "transition", "slope", "quadratic", "gain", "quarter_gain", "quadratic_gain", *gated)
    # One pass over the shards for all transitions: they lie side by side in every shard.
    found = _of_references(run, condition, run.tokens).with_columns(continues).select(columns).collect()
    for transition in run.manifest.transitions:
        here = found.filter(pl.col("transition") == transition)
        if here.height:
            measured = at(condition, transition, here["row"].n_unique())
            gate = None if here["exit_depth"].null_count() else here.select(gated)
            yield Tokens(measured, here.filter(pl.col("continues").fill_null(True)), here.height, gate)
