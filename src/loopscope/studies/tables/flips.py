"""What the model would say after each loop: how often it changes its mind, and whether that helps.

A position is one reference token; the model says its likeliest token there. A flip is another likeliest token than one
loop before. All estimates are shares or means over positions; intervals resample questions with all their positions.
"""

from dataclasses import dataclass

import numpy as np

from loopscope.stats import Bootstrap, Estimate, Statistic
from loopscope.studies.conditions import at
from loopscope.studies.records import Records
from loopscope.studies.result import COUNT, IDENTITY, MODEL, TASK, Panel, Row, TableResult, column, fixed, percent
from loopscope.studies.trace_rows import TraceRows, no_trace, trace_rows
from loopscope.studies.usable_conditions import notes_on

_POSITIONS = (
    "Positions are the reference tokens (in option tasks those of the right option); the model says its likeliest "
    "token. Paired 95% intervals resample questions, retaining their positions together."
)


@dataclass(frozen=True)
class FlipRow(Row):
    """One loop: what is said after it against what was said before it."""

    positions: int
    right: Estimate
    """Positions at which the reference is said after the loop."""
    flipped: Estimate
    """Positions at which another token is said than before."""
    wrong_to_right: Estimate
    right_to_wrong: Estimate
    net: Estimate
    """Wrong to right minus right to wrong."""


@dataclass(frozen=True)
class SettlingRow(Row):
    """All loops of one evaluation set."""

    positions: int
    loops: int
    """The deepest loop of the trace."""
    settled: Estimate
    """Mean loop after which the token said stays what it is."""
    unsettled: Estimate
    """Positions that flip in the last loop."""
    flips: Estimate
    """Mean number of flips."""
    right_first: Estimate
    right_last: Estimate
    right_ever: Estimate
    """Positions at which the reference is said after the first, the last, some loop."""
    wrong_then_right: Estimate
    """Wrong after the first loop and right after the last."""
    right_then_wrong: Estimate
    """Right after some loop and wrong after the last."""


FLIP_COLUMNS = (
    *IDENTITY,
    column("positions", "Positions", COUNT),
    column("right", "Right after (%)", percent(1, interval=True)),
    column("flipped", "Flips (%)", percent(2, interval=True)),
    column("wrong_to_right", "Wrong to right (%)", percent(2, interval=True)),
    column("right_to_wrong", "Right to wrong (%)", percent(2, interval=True)),
    column("net", "Net (%)", percent(2, interval=True, sign=True)),
)

SETTLING_PANELS = (
    Panel(
        (
            MODEL,
            TASK,
            column("positions", "Positions", COUNT),
            column("loops", "Loops", COUNT),
            column("settled", "Settled after", fixed(2, interval=True)),
            column("flips", "Flips", fixed(2, interval=True)),
            column("unsettled", "Flip in the last loop (%)", percent(2, interval=True)),
        ),
        title="(a) Loops until the token said stays",
    ),
    Panel(
        (
            MODEL,
            TASK,
            column("right_first", "First", percent(1, interval=True), group="Right (%)"),
            column("right_last", "Last", percent(1, interval=True), group="Right (%)"),
            column("right_ever", "Some loop", percent(1, interval=True), group="Right (%)"),
            column("wrong_then_right", "Wrong, then right (%)", percent(2, interval=True)),
            column("right_then_wrong", "Right, then wrong (%)", percent(2, interval=True)),
        ),
        title="(b) What the loops between the first and the last changed",
    ),
)


def flips_of(traced: TraceRows, bootstrap: Bootstrap | None = None) -> list[FlipRow]:
    """Every loop from the second on; all of them share their resamples."""
    clusters, right_PT = traced.clusters, traced.right
    statistics: dict[tuple[int, str], Statistic] = {}
    for depth in range(2, traced.loops + 1):
        now_P, before_P = right_PT[:, depth - 1], right_PT[:, depth - 2]
        gained_P, lost_P = now_P & ~before_P, before_P & ~now_P
        statistics |= {
            (depth, "right"): clusters.mean(now_P),
            (depth, "flipped"): clusters.mean(traced.changed[:, depth - 1]),
            (depth, "wrong_to_right"): clusters.mean(gained_P),
            (depth, "right_to_wrong"): clusters.mean(lost_P),
            (depth, "net"): clusters.mean(gained_P.astype(np.float64) - lost_P),
        }
    found = (bootstrap or Bootstrap()).estimate(statistics)
    return [
        FlipRow(
            at(traced.condition, depth - 1, traced.condition.n),
            "",
            positions=len(traced.row_P),
            **{name: estimate for (at_depth, name), estimate in found.items() if at_depth == depth},
        )
        for depth in range(2, traced.loops + 1)
    ]


def flips(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[FlipRow]:
    """One row per loop of every evaluation set that was measured with a trace."""
    rows = tuple(row for traced in trace_rows(records) for row in flips_of(traced, bootstrap))
    return TableResult(
        study="flips",
        label="tab:flips",
        title="Flips of the likeliest token, loop by loop",
        caption="Shares of all positions. " + _POSITIONS,
        rows=rows,
        panels=(Panel(FLIP_COLUMNS),),
        notes=notes_on(row.condition for row in rows) if rows else (no_trace(records),),
    )


def settling(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[SettlingRow]:
    """One row per evaluation set that was measured with a trace."""
    rows = tuple(_settling(traced, bootstrap or Bootstrap()) for traced in trace_rows(records))
    return TableResult(
        study="settling",
        label="tab:settling",
        title="When the likeliest token settles, and on what",
        caption=(
            "(a) A position is settled after the loop from which on the likeliest token stays the same up to the "
            "deepest loop measured; one that never flips is settled after the first. (b) Wrong, then right: wrong "
            "after the first loop and right after the last. Right, then wrong: right after some loop and wrong after "
            "the last. " + _POSITIONS
        ),
        rows=rows,
        panels=SETTLING_PANELS,
        notes=notes_on(row.condition for row in rows) if rows else (no_trace(records),),
    )


def _settling(traced: TraceRows, bootstrap: Bootstrap) -> SettlingRow:
    mean, right_PT = traced.clusters.mean, traced.right
    first_P, last_P, ever_P = right_PT[:, 0], right_PT[:, -1], right_PT.any(axis=1)
    estimates = bootstrap.estimate(
        {
            "settled": mean(traced.settled),
            "unsettled": mean(traced.changed[:, -1]),
            "flips": mean(traced.changed.sum(axis=1)),
            "right_first": mean(first_P),
            "right_last": mean(last_P),
            "right_ever": mean(ever_P),
            "wrong_then_right": mean(~first_P & last_P),
            "right_then_wrong": mean(ever_P & ~last_P),
        }
    )
    return SettlingRow(traced.condition, "", positions=len(traced.row_P), loops=traced.loops, **estimates)
