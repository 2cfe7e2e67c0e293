"""What a monitor says of one call: means over the questions of each task, with their standard errors.

Rows are named as in `monitor_log`; columns come from the pass itself (`measuring`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from loopscope.measuring.batch_pass import Tables
from loopscope.measuring.update import Columns
from loopscope.path import Outcome
from loopscope.store.schema import ends_of

MEANS = (
    *("utility_before", "utility_after", "gain", "slope", "quadratic"),
    *("quadratic_scale", "quarter_gain", "quadratic_gain"),
)
"""Columns of a pass whose means are logged."""
LOGGED_DEPTH = ("utility", "accuracy")
"""Of a depth, what goes to TensorBoard and W&B."""
LOGGED_UPDATE = (
    *("gain", "slope", "quadratic", "accumulated_curvature", "quadratic_scale", "quarter_gain", "quadratic_gain"),
    *("progressing", "neutral", "directional", "finite_step", "harmful", "share"),
    *("sign_slope", "sign_quadratic", "quarter_recovery", "quadratic_recovery"),
)
"""The same of an update."""


@dataclass(frozen=True)
class Record:
    """What one call found.

    Attributes:
        step: of the training.
        depths: one row per task and depth.
        updates: one row per task and transition.
        call: what the measuring took.
    """

    step: int
    depths: tuple[Mapping[str, Any], ...]
    updates: tuple[Mapping[str, Any], ...]
    call: Mapping[str, Any]

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        """All of them, as the log holds them."""
        return [*self.depths, *self.updates, self.call]

    def scalars(self) -> dict[str, float]:
        """One number per name, such as `loopscope/gain/4-5`; with several tasks `loopscope/stories/gain/4-5`.

        What is not defined (a share of failures where there are none) is left out.
        """
        several = len({row["task"] for row in self.depths}) > 1
        found: dict[str, float] = {}
        for rows, names in ((self.depths, LOGGED_DEPTH), (self.updates, LOGGED_UPDATE)):
            for row in rows:
                place = row["depth"] if "depth" in row else "{}-{}".format(*ends_of(row["transition"]))
                group = f"loopscope/{row['task']}" if several else "loopscope"
                found |= {f"{group}/{name}/{place}": row[name] for name in names if row.get(name) is not None}
        return found


def depth_rows(step: int, task: str, tables: Tables) -> list[dict[str, Any]]:
    """The mean utility at every depth, and where there are options, how often the right one is the likeliest."""
    columns, examples = tables["depths"], tables["examples"]
    frame = pl.DataFrame({name: columns[name] for name in ("row", "depth", "utility")})
    if "chosen_option" in columns:
        correct = dict(zip(examples["row"], examples["correct_option"], strict=True))
        right = pl.Series(columns["chosen_option"]) == frame["row"].replace_strict(correct)
        frame = frame.with_columns(accuracy=right)
    return _rows("depth", step, task, frame.drop("row"), "depth")


def update_rows(step: int, task: str, questions: Columns) -> list[dict[str, Any]]:
    """Everything about every update."""
    if not questions:
        return []
    frame = pl.DataFrame({name: questions[name] for name in ("transition", *MEANS, "outcome")})
    gain, slope, outcome = pl.col("gain"), pl.col("slope"), pl.col("outcome")
    failures, harmful = outcome == Outcome.FINITE_STEP_FAILURE, outcome >= Outcome.DIRECTIONAL_FAILURE
    columns = frame.select(
        "transition",
        *MEANS,
        accumulated_curvature=gain - slope,
        progressing=outcome == Outcome.PROGRESSING,
        neutral=outcome == Outcome.NEUTRAL,
        directional=outcome == Outcome.DIRECTIONAL_FAILURE,
        finite_step=failures,
        harmful=harmful,
        share=pl.when(harmful).then(failures),
        sign_slope=slope.sign() == gain.sign(),
        sign_quadratic=(slope + pl.col("quadratic")).sign() == gain.sign(),
        quarter_recovery=pl.when(failures).then(pl.col("quarter_gain") > 0),
        quadratic_recovery=pl.when(failures).then(pl.col("quadratic_gain") > 0),
    )
    return _rows("update", step, task, columns, "transition")


def _rows(kind: str, step: int, task: str, columns: pl.DataFrame, by: str) -> list[dict[str, Any]]:
    """The mean of each column over the questions that have it, and its standard error where there are two or more."""
    values = pl.exclude(by).cast(pl.Float64)
    error = (values.std() / values.count().sqrt()).name.suffix("_se")
    found = columns.group_by(by).agg(pl.len().alias("questions"), values.mean(), error).sort(by)
    return [{"kind": kind, "step": step, "task": task, **row} for row in found.iter_rows(named=True)]
