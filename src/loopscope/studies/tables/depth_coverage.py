"""Depth-sweep coverage and observed utility declines: Table "tab:evaluation-coverage", Appendix E.1."""

from dataclasses import dataclass

import numpy as np

from loopscope.stats import Bootstrap, Estimate, Mean
from loopscope.studies.records import DepthSweep, Records
from loopscope.studies.result import (
    COUNT,
    TASK,
    TEXT,
    Column,
    Panel,
    Row,
    TableResult,
    column,
)
from loopscope.studies.usable_conditions import no_depths, notes_on


@dataclass(frozen=True)
class DepthRow(Row):
    """One model on one evaluation set."""

    n: int
    depths: str
    """The evaluated depths."""
    peak: int
    """The depth with the highest mean utility, the smallest of equals."""
    decline: str | None
    """Earliest running-best decrease whose paired interval lies below zero, as `4→5`."""
    decline_change: Estimate
    """Mean utility change of that pair."""


@dataclass(frozen=True)
class RunningBest:
    """One depth against the best depth before it."""

    reference: int
    depth: int
    change: Estimate

    @property
    def declines(self) -> bool:
        """Whether the interval lies below zero."""
        return self.change.interval is not None and self.change.interval.high < 0


DEPTH_COLUMNS = (
    TASK,
    Column(("n",), "N", (COUNT,), latex="$N$", text=True),
    column("peak", "Peak", COUNT),
    Column(("decline",), "Decline", (TEXT,)),
)


def running_best(sweep: DepthSweep, bootstrap: Bootstrap | None = None) -> list[RunningBest]:
    """Every depth after the first against the earlier depth with the largest mean utility (ties: the smallest).

    The differences are paired by question and share their resamples.
    """
    means = sweep.utility.mean(axis=0)
    references = [int(np.argmax(means[:index])) for index in range(1, len(sweep.depths))]
    changes = (bootstrap or Bootstrap()).estimate(
        {
            index: Mean(sweep.utility[:, index] - sweep.utility[:, reference])
            for index, reference in enumerate(references, start=1)
        }
    )
    return [
        RunningBest(sweep.depths[reference], sweep.depths[index], changes[index])
        for index, reference in enumerate(references, start=1)
    ]


def depth_coverage(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[DepthRow]:
    """One row per model and evaluation set; printed with the models side by side, as in the paper."""
    notes = notes_on(sweep.condition for sweep in records.sweeps)
    if not records.sweeps:
        notes += (no_depths(records),)
    return TableResult(
        study="depth-coverage",
        label="tab:evaluation-coverage",
        title="Depth-sweep coverage and observed utility declines",
        caption=(
            "Peak is the evaluated depth with highest mean reference utility. Decline is the earliest running-best "
            "decrease with a pointwise 95% paired interval below zero; a dash indicates none on the evaluated depths. "
            "Non-adjacent depth pairs represent cumulative changes."
        ),
        rows=tuple(_row(sweep, bootstrap) for sweep in records.sweeps),
        panels=(Panel(DEPTH_COLUMNS, across="condition.model_title"),),
        notes=notes,
    )


def _row(sweep: DepthSweep, bootstrap: Bootstrap | None) -> DepthRow:
    first = next((pair for pair in running_best(sweep, bootstrap) if pair.declines), None)
    return DepthRow(
        sweep.condition,
        "",
        n=sweep.condition.n,
        depths=",".join(map(str, sweep.depths)),
        peak=sweep.depths[int(np.argmax(sweep.utility.mean(axis=0)))],
        decline=f"{first.reference}→{first.depth}" if first else None,
        decline_change=first.change if first else Estimate(None, sweep.condition.n),
    )
