"""How unevenly a model answers an option task at each depth: a model that always says Yes has a utility, too."""

from dataclasses import dataclass

import numpy as np

from loopscope.stats import Bootstrap, Estimate, Mean
from loopscope.studies.records import DepthSweep, Records
from loopscope.studies.result import COUNT, MODEL, TASK, Column, Panel, Row, TableResult, column, percent
from loopscope.studies.usable_conditions import OPTION_TASKS, no_depths, notes_on


@dataclass(frozen=True)
class ResponseRow(Row):
    """One depth of one option task; the key is the depth."""

    depth: int
    option: int
    """The option that is chosen most often, from 0; the smallest of equals."""
    chosen: int
    """How often."""
    share: Estimate
    right: float | None
    """Share of questions whose right option it is."""
    accuracy: Estimate


COLUMNS = (
    MODEL,
    TASK,
    column("depth", "Depth", COUNT),
    column("option", "Most chosen\noption", COUNT),
    Column(("chosen", "condition.n"), "Chosen", (COUNT, COUNT), template="{}/{}"),
    column("share", "Share (%) [95% CI]", percent(2, interval=True), latex=r"Share (\%) [95\% CI]"),
    column("right", "Right (%)", percent(2), latex=r"Right (\%)"),
    column("accuracy", "Accuracy (%)", percent(2), latex=r"Accuracy (\%)"),
)


def option_responses(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[ResponseRow]:
    """One row per stored depth of every option task."""
    sweeps = [sweep for sweep in records.sweeps if OPTION_TASKS.includes(sweep.condition) and sweep.chosen is not None]
    notes = notes_on(sweep.condition for sweep in sweeps)
    if not records.sweeps:
        notes += (no_depths(records),)
    elif not sweeps:
        notes += (records.nothing(f"this study is about {OPTION_TASKS.words}, and these runs hold none"),)
    return TableResult(
        study="option-responses",
        label="app:exp-coverage",
        title="Response imbalance by depth",
        caption=(
            "The option that is chosen most often at each depth, counted from 0, and the share of questions whose "
            "right option it is. Where both differ widely, a change of utility says little about reasoning."
        ),
        rows=tuple(row for sweep in sweeps for row in _rows(sweep, bootstrap or Bootstrap())),
        panels=(Panel(COLUMNS),),
        notes=notes,
    )


def _rows(sweep: DepthSweep, bootstrap: Bootstrap) -> list[ResponseRow]:
    assert sweep.chosen is not None
    assert sweep.right is not None
    assert sweep.correct is not None
    rows = []
    for index, depth in enumerate(sweep.depths):
        chosen = sweep.chosen[:, index]
        option = int(np.bincount(chosen).argmax())
        found = bootstrap.estimate(
            {"share": Mean(chosen == option), "accuracy": Mean(sweep.correct[:, index])},
        )
        rows.append(
            ResponseRow(
                sweep.condition,
                str(depth),
                depth=depth,
                option=option,
                chosen=int((chosen == option).sum()),
                right=float((sweep.right == option).mean()),
                **found,
            )
        )
    return rows
