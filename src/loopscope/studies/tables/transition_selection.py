"""Which update to look at, as the paper chose it: the earliest consecutive decrease whose interval lies below zero."""

from dataclasses import dataclass
from itertools import pairwise

from loopscope.stats import Bootstrap, Estimate, Mean
from loopscope.studies.records import DepthSweep, Records
from loopscope.studies.result import COUNT, MODEL, QUESTIONS, TASK, TEXT, Column, Panel, Row, TableResult, column, fixed
from loopscope.studies.usable_conditions import no_depths, notes_on


@dataclass(frozen=True)
class SelectionRow(Row):
    """One model on one evaluation set."""

    examined: int
    """Pairs of neighbouring depths t, t+1 that are stored."""
    declines: int
    """Those whose interval lies below zero."""
    selected: str | None
    """The earliest of them, as `19→20`."""
    change: Estimate
    """Its mean utility change."""
    largest: str | None
    """The pair with the lowest mean change."""
    largest_change: Estimate


@dataclass(frozen=True)
class Consecutive:
    """Two neighbouring depths."""

    depth: int
    change: Estimate

    @property
    def declines(self) -> bool:
        """Whether the interval lies below zero."""
        return self.change.interval is not None and self.change.interval.high < 0

    @property
    def name(self) -> str:
        """As `19→20`."""
        return f"{self.depth}→{self.depth + 1}"


COLUMNS = (
    MODEL,
    TASK,
    QUESTIONS,
    column("examined", "Pairs", COUNT),
    column("declines", "Declines", COUNT),
    Column(("selected",), "Earliest", (TEXT,)),
    column("change", "Change (1e-3) [95% CI]", fixed(3, 1e3, interval=True), latex=r"Change ($10^{-3}$) [95\% CI]"),
    Column(("largest",), "Lowest", (TEXT,)),
    column("largest_change", "Change (1e-3)", fixed(3, 1e3), latex="Change ($10^{-3}$)"),
)


def consecutive_changes(sweep: DepthSweep, bootstrap: Bootstrap | None = None) -> list[Consecutive]:
    """The mean utility change between neighbouring stored depths, paired by question."""
    pairs = [index for index, (t, after) in enumerate(pairwise(sweep.depths)) if after == t + 1]
    changes = (bootstrap or Bootstrap()).estimate(
        {index: Mean(sweep.utility[:, index + 1] - sweep.utility[:, index]) for index in pairs}
    )
    return [Consecutive(sweep.depths[index], changes[index]) for index in pairs]


def transition_selection(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[SelectionRow]:
    """One row per model and evaluation set with two neighbouring depths."""
    rows = tuple(row for sweep in records.sweeps if (row := _row(sweep, bootstrap)) is not None)
    notes = notes_on(row.condition for row in rows)
    return TableResult(
        study="transition-selection",
        label="app:exp-protocol",
        title="Selection of a transition",
        caption=(
            "Earliest consecutive decrease of mean reference utility with a pointwise 95% paired interval below zero, "
            "among the neighbouring depths that are stored. Intervals do not adjust for the choice."
        ),
        rows=rows,
        panels=(Panel(COLUMNS),),
        notes=notes if rows else (*notes, no_depths(records)),
    )


def _row(sweep: DepthSweep, bootstrap: Bootstrap | None) -> SelectionRow | None:
    pairs = consecutive_changes(sweep, bootstrap)
    if not pairs:
        return None
    declines = [pair for pair in pairs if pair.declines]
    lowest = min(pairs, key=lambda pair: pair.change.value or 0.0)
    return SelectionRow(
        sweep.condition,
        "",
        examined=len(pairs),
        declines=len(declines),
        selected=declines[0].name if declines else None,
        change=declines[0].change if declines else Estimate(None, sweep.condition.n),
        largest=lowest.name,
        largest_change=lowest.change,
    )
