"""What a monitor says of one call: means over the questions of each task, with their standard errors.

Rows are named as in `monitor_log`; columns come from the pass itself (`measuring`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from loopscope.measuring.host_copies import Columns
from loopscope.measuring.producers import Tables
from loopscope.path import Outcome, endpoint_prediction
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
    columns, examples, found = tables["depths"], tables["examples"], []
    right = None
    if "chosen_option" in columns:
        correct = dict(zip(examples["row"], examples["correct_option"], strict=True))
        right = np.asarray(columns["chosen_option"]) == np.asarray([correct[row] for row in columns["row"]])
    depths = np.asarray(columns["depth"])
    for depth in np.unique(depths):
        here = depths == depth
        means = {"utility": np.asarray(columns["utility"])[here]}
        if right is not None:
            means["accuracy"] = right[here]
        found.append({**_key("depth", step, task), "depth": int(depth), "questions": int(here.sum()), **_means(means)})
    return found


def update_rows(step: int, task: str, questions: Columns) -> list[dict[str, Any]]:
    """Everything about every update."""
    if not questions:
        return []
    transitions = np.asarray(questions["transition"])
    found = []
    for transition in np.unique(transitions):
        here = transitions == transition
        columns = {name: np.asarray(questions[name])[here] for name in (*MEANS, "outcome")}
        key = {**_key("update", step, task), "transition": int(transition), "questions": int(here.sum())}
        found.append({**key, **_means(_of_update(columns))})
    return found


def _key(kind: str, step: int, task: str) -> dict[str, Any]:
    return {"kind": kind, "step": step, "task": task}


def _of_update(columns: Mapping[str, Any]) -> dict[str, ArrayLike]:
    gain, slope, outcome = columns["gain"], columns["slope"], columns["outcome"]
    predicted = endpoint_prediction(slope, columns["quadratic"])
    harmful = outcome >= Outcome.DIRECTIONAL_FAILURE
    failures = outcome == Outcome.FINITE_STEP_FAILURE
    return {
        **{name: columns[name] for name in MEANS},
        "accumulated_curvature": gain - slope,
        "progressing": outcome == Outcome.PROGRESSING,
        "neutral": outcome == Outcome.NEUTRAL,
        "directional": outcome == Outcome.DIRECTIONAL_FAILURE,
        "finite_step": failures,
        "harmful": harmful,
        "share": failures[harmful],
        "sign_slope": np.sign(slope) == np.sign(gain),
        "sign_quadratic": np.sign(predicted) == np.sign(gain),
        "quarter_recovery": columns["quarter_gain"][failures] > 0,
        "quadratic_recovery": columns["quadratic_gain"][failures] > 0,
    }


def _means(values: Mapping[str, ArrayLike]) -> dict[str, float | None]:
    """The mean of each, and its standard error where there are two numbers or more."""
    found: dict[str, float | None] = {}
    for name, given in values.items():
        numbers = np.asarray(given, dtype=np.float64)
        found[name] = float(numbers.mean()) if numbers.size else None
        spread = float(numbers.std(ddof=1)) / math.sqrt(numbers.size) if numbers.size > 1 else None
        found[f"{name}_se"] = spread
    return found
