"""Scale selection at a glance: Table "tab:interventions-main", Section 4.4.

The quadratic rule over all questions (BF16 intervention states) and the curvature-bound rule over the finite-step
failures (FP64), each against the quarter step.
"""

from dataclasses import dataclass

from loopscope.stats import Bootstrap, Estimate
from loopscope.studies.records import Records, Updates
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
)
from loopscope.studies.selection import notes_on
from loopscope.studies.tables import bound_selected, quadratic_intervention

RULES = {"quadratic": "Quadratic", "bound": "Bound"}
POPULATIONS = {"quadratic": "All questions", "bound": "Failures"}


@dataclass(frozen=True)
class RuleRow(Row):
    """One rule (the key) in one condition."""

    recovered_quarter: int
    recovered_selected: int
    failures: int
    population: str
    """Over whom the gains are averaged."""
    n: int
    """Size of that population."""
    mean_gain: Estimate
    advantage: Estimate
    """Paired advantage over the quarter step."""
    without_scale: int = 0
    """Failures whose state the bound rule keeps, because their FP64 slope is not positive."""


COLUMNS = (
    MODEL,
    TASK,
    UPDATE,
    label("key", "Rule"),
    Column(
        ("recovered_quarter", "recovered_selected", "failures"),
        "Recovered\nquarter → selected",
        (COUNT, COUNT, COUNT),
        latex=r"\makecell{Recovered\\quarter $\to$ selected}",
        template="{} → {} ({})",
    ),
    Column(("population", "n"), "Utility\npopulation", (COUNT, COUNT), template="{} ({})"),
    column("mean_gain", "Mean\ngain", fixed(3, 1e3)),
    column("advantage", "Advantage over quarter\n[95% CI]", fixed(3, 1e3, interval=True)),
)


def interventions(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[RuleRow]:
    """Up to two rows per condition, as far as its level of measurement goes."""
    settings = bootstrap or Bootstrap()
    rows = tuple(row for updates in records.updates for row in _rows(updates, settings))
    notes = notes_on(row.condition for row in rows)
    notes += tuple(
        bound_selected.kept_note(row.condition, "failures", row.without_scale, row.n)
        for row in rows
        if row.without_scale
    )
    if not rows:
        notes += (records.nothing("no condition has interventions: measure with --level grid"),)
    return TableResult(
        study="interventions",
        label="tab:interventions-main",
        title="Scale selection",
        caption=(
            "Utility units: 0.001. Recovery counts show quarter and selected scale (failure denominator); utility "
            "populations are listed separately. Brackets give paired 95% intervals. Bound selection uses FP64."
        ),
        rows=rows,
        panels=(Panel(COLUMNS),),
        notes=notes,
        key_names=RULES,
    )


def _rows(updates: Updates, bootstrap: Bootstrap) -> list[RuleRow]:
    rows = []
    if updates.has(*quadratic_intervention.NEEDED):
        by_action = {row.key: row for row in quadratic_intervention.rows_of(updates, bootstrap)}
        rows.append(
            RuleRow(
                updates.condition,
                "quadratic",
                recovered_quarter=by_action["quarter"].recovered,
                recovered_selected=by_action["quadratic"].recovered,
                failures=by_action["quadratic"].failures,
                population=POPULATIONS["quadratic"],
                n=len(updates),
                mean_gain=by_action["quadratic"].mean_gain,
                advantage=by_action["difference"].mean_gain,
            )
        )
    if updates.condition.concave and updates.has("fp64_L_D", "fp64_quarter_gain"):
        failures = next(row for row in bound_selected.rows_of(updates, bootstrap) if row.key == "failures")
        rows.append(
            RuleRow(
                updates.condition,
                "bound",
                recovered_quarter=failures.quarter_positive,
                recovered_selected=failures.selected_positive,
                failures=failures.n,
                population=POPULATIONS["bound"],
                n=failures.n,
                mean_gain=failures.mean_gain,
                advantage=failures.advantage,
                without_scale=failures.without_scale,
            )
        )
    return rows
