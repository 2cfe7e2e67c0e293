"""One evaluation set of one run, as the page stores it: questions in order, updates by transition, depths, tokens.

Shapes: N questions, T transitions, K depths, J reference tokens of all options, G = 21 grid scales.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from loopscope._errors import LoopscopeError
from loopscope.store import Run
from loopscope.studies.conditions import Condition, conditions_of
from loopscope.studies.records import Floats, Updates

Single = NDArray[np.float32]


@dataclass(frozen=True)
class EvaluationSet:
    """The stored rows of one task and split."""

    run: Run
    condition: Condition
    updates: tuple[Updates, ...]
    """One per transition, every one over the same questions in the same order."""

    @property
    def transitions(self) -> tuple[int, ...]:
        """Each t of an update t → t+1."""
        return tuple(self.run.manifest.transitions)

    @property
    def depths(self) -> tuple[int, ...]:
        """The depths at which utilities are stored."""
        return tuple(self.run.manifest.depths)

    @cached_property
    def examples(self) -> pl.DataFrame:
        """The texts, in order."""
        return self._mine(self.run.examples).sort("row")

    def __len__(self) -> int:
        return self.examples.height

    @cached_property
    def depth_rows(self) -> pl.DataFrame:
        """The `depths` rows, by question and then by depth."""
        return self._mine(self.run.depths).sort("row", "depth")

    def stacked(self, column: str) -> Single:
        """A column of every transition, NaN for null: [T, N]."""
        return np.stack([updates.floats(column) for updates in self.updates]).astype(np.float32)

    def has(self, column: str) -> bool:
        """Whether any row has a value in this column."""
        return any(updates.has_some(column) for updates in self.updates)

    def grid(self) -> Floats | None:
        """φ on the grid, [T, N, G]; None where the run's level has none."""
        if not all(updates.has("grid_gain") for updates in self.updates):
            return None
        return np.stack([updates.grid_gain for updates in self.updates])

    def tokens(self, transition: int) -> pl.DataFrame:
        """The token rows of one transition, by question, option and token."""
        rows = self.run.tokens.filter(
            pl.col("task") == self.condition.task,
            pl.col("split") == self.condition.split,
            pl.col("transition") == transition,
        )
        return rows.collect().sort("row", "option", "token")

    def paths(self, transition: int) -> pl.DataFrame:
        """The stored FP64 paths of one transition, by question."""
        rows = self.run.paths.filter(
            pl.col("task") == self.condition.task,
            pl.col("split") == self.condition.split,
            pl.col("transition") == transition,
        )
        return rows.select("row", "alpha", "gain").collect().sort("row")

    def _mine(self, frame: pl.DataFrame) -> pl.DataFrame:
        return frame.filter(pl.col("task") == self.condition.task, pl.col("split") == self.condition.split)


def sets_of(run: Run) -> list[EvaluationSet]:
    """The evaluation sets of a run that have rows; an unfinished run shows what it has."""
    found = []
    for condition in conditions_of(run):
        mine = run.records.filter(pl.col("task") == condition.task, pl.col("split") == condition.split)
        if not mine.height:
            continue
        updates = tuple(
            Updates(_at(condition, transition, rows), rows)
            for transition in run.manifest.transitions
            if (rows := mine.filter(pl.col("transition") == transition).sort("row")).height
        )
        found.append(EvaluationSet(run, condition, updates))
    if not found:
        raise LoopscopeError(f"{run.path} holds no measured question yet: let `loopscope measure` finish a unit first")
    return found


def _at(condition: Condition, transition: int, rows: pl.DataFrame) -> Condition:
    from loopscope.studies.conditions import at

    return at(condition, transition, rows.height)


def column(frame: pl.DataFrame, name: str, dtype: Any) -> NDArray[Any]:
    """A column without nulls as an array of `dtype`."""
    return frame[name].to_numpy().astype(dtype)
