"""Immediate utility under quadratic scale selection: Table "tab:quadratic-intervention", Appendix E.6.

Interventions are the computed BF16 states: the interpolated state is rounded before it is read out, and gains are
relative to the common current state. Mean gains use all questions, recovery the original finite-step failures.
"""

from dataclasses import dataclass

from loopscope.stats import Bootstrap, Estimate, Mean
from loopscope.store import Level
from loopscope.studies.records import Floats, Records, Updates
from loopscope.studies.result import (
    COUNT,
    MODEL,
    TASK,
    UPDATE,
    Column,
    Panel,
    Row,
    TableResult,
    column,
    fixed,
    label,
    percent,
)
from loopscope.studies.selection import select

ACTIONS = {"quarter": "Quarter step", "quadratic": "Quadratic rule", "difference": "Quadratic − quarter"}
NEEDED = ("bf16_quarter_gain", "bf16_quadratic_gain")


@dataclass(frozen=True)
class InterventionRow(Row):
    """One action (the key) in one condition; the last row is the paired difference."""

    mean_gain: Estimate
    recovered: int
    failures: int
    recovery: Estimate
    """Recovered share of the failures; resampled among them."""


COLUMNS = (
    MODEL,
    TASK,
    UPDATE,
    label("key", "Action"),
    column("mean_gain", "Mean gain\n[95% CI]", fixed(3, 1e3, sign=True, interval=True)),
    Column(("recovered", "failures"), "Recovered", (COUNT, COUNT), template="{} / {}"),
    column("recovery", "Recovery (%)", percent(2, interval=True)),
)


def quadratic_intervention(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[InterventionRow]:
    """Three rows per condition."""
    chosen = select(records, *NEEDED, level=Level.GRID)
    return TableResult(
        study="quadratic-intervention",
        label="tab:quadratic-intervention",
        title="Immediate utility under quadratic scale selection",
        caption=(
            "Mean gains relative to the current state use all questions and are in units of 0.001, with paired 95% "
            "question-bootstrap intervals. Recovery counts use the original finite-step failures. The last row of a "
            "condition reports the paired utility advantage and net recovery differences. Outcomes use the computed "
            "BF16 intervention states."
        ),
        rows=tuple(row for updates in chosen.kept for row in rows_of(updates, bootstrap or Bootstrap())),
        panels=(Panel(COLUMNS),),
        notes=chosen.notes,
        key_names=ACTIONS,
    )


def rows_of(updates: Updates, bootstrap: Bootstrap) -> list[InterventionRow]:
    """Quarter, quadratic and their difference."""
    quarter, quadratic = (updates.floats(name) for name in NEEDED)
    means = bootstrap.estimate(
        {"quarter": Mean(quarter), "quadratic": Mean(quadratic), "difference": Mean(quadratic - quarter)}
    )
    failures = updates.finite_step
    recovered: dict[str, Floats] = {
        "quarter": (quarter[failures] > 0).astype(float),
        "quadratic": (quadratic[failures] > 0).astype(float),
    }
    recovered["difference"] = recovered["quadratic"] - recovered["quarter"]
    rates = bootstrap.estimate({action: Mean(values) for action, values in recovered.items()})
    return [
        InterventionRow(
            updates.condition,
            action,
            mean_gain=means[action],
            recovered=int(recovered[action].sum()),
            failures=int(failures.sum()),
            recovery=rates[action],
        )
        for action in ACTIONS
    ]
