"""Shorter steps instead of the proposed one: what they recover of the finite-step failures, and what they gain.

- `contraction` (the numbers of Figure "fig:contraction", Section 4.4): a quarter of the displacement.
- `quadratic_intervention` (Table "tab:quadratic-intervention", Appendix E.6): the quadratic scale and the quarter step.
  Interventions are the computed BF16 states: the interpolated state is rounded before it is read out, and gains are
  relative to the common current state. Mean gains use all questions, recovery the original finite-step failures.
- `interventions` (Table "tab:interventions-main", Section 4.4): the quadratic rule over all questions (BF16) and the
  curvature-bound rule over the finite-step failures (FP64), each against the quarter step.
"""

from __future__ import annotations

from dataclasses import dataclass

from loopscope.errors import setting
from loopscope.path import EFFECT_MARGIN
from loopscope.stats import Bootstrap, Estimate, Mean
from loopscope.store import Level
from loopscope.studies.records import Floats, Records, Updates
from loopscope.studies.result import (
    COUNT,
    IDENTITY,
    Column,
    Panel,
    Row,
    TableResult,
    column,
    fixed,
    label,
    percent,
)
from loopscope.studies.tables.scale_bounds import bound_selected_rows, kept_note
from loopscope.studies.usable_conditions import notes_on, select


@dataclass(frozen=True)
class ContractionRow(Row):
    """The finite-step failures of one condition at a quarter of their displacement."""

    recovered: int
    failures: int
    recovery: Estimate
    mean_gain: Estimate
    """Over all failures, recovered or not."""
    recovered_beyond_margin: int
    """Gains above 1e-4."""


CONTRACTION_COLUMNS = (
    *IDENTITY,
    Column(("recovered", "failures"), "Recovered", (COUNT, COUNT), template="{}/{}"),
    column("recovery", "Recovery (%)\n[95% CI]", percent(1, interval=True)),
    column("mean_gain", "Mean gain (1e-3)\n[95% CI]", fixed(3, 1e3, sign=True, interval=True)),
    column("recovered_beyond_margin", "Beyond\nthe margin", COUNT),
)


def contraction(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[ContractionRow]:
    """One row per condition; intervals resample its failures."""
    return select(records, "grid_gain", level=Level.GRID).table(
        "contraction",
        _contraction_row,
        bootstrap,
        label="tab:contraction",
        title="Quarter-step recovery",
        caption=(
            "Finite-step failures with positive gain at one quarter of the proposed displacement, and mean gain over "
            "the same failures, unrecovered ones included. Intervals resample the selected failures."
        ),
        columns=CONTRACTION_COLUMNS,
    )


def _contraction_row(updates: Updates, bootstrap: Bootstrap) -> ContractionRow:
    gain = updates.quarter_gain[updates.finite_step]
    estimates = bootstrap.estimate({"recovery": Mean(gain > 0), "mean_gain": Mean(gain)})
    return ContractionRow(
        updates.condition,
        "",
        recovered=int((gain > 0).sum()),
        failures=gain.size,
        recovered_beyond_margin=int((gain > EFFECT_MARGIN).sum()),
        **estimates,
    )


ACTIONS = {"quarter": "Quarter step", "quadratic": "Quadratic rule", "difference": "Quadratic − quarter"}
BF16_GAINS = ("bf16_quarter_gain", "bf16_quadratic_gain")


@dataclass(frozen=True)
class InterventionRow(Row):
    """One action (the key) in one condition; the last row is the paired difference."""

    mean_gain: Estimate
    recovered: int
    failures: int
    recovery: Estimate
    """Recovered share of the failures; resampled among them."""


QUADRATIC_COLUMNS = (
    *IDENTITY,
    label("key", "Action"),
    column("mean_gain", "Mean gain\n[95% CI]", fixed(3, 1e3, sign=True, interval=True)),
    Column(("recovered", "failures"), "Recovered", (COUNT, COUNT), template="{} / {}"),
    column("recovery", "Recovery (%)", percent(2, interval=True)),
)


def quadratic_intervention(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[InterventionRow]:
    """Three rows per condition."""
    return select(records, *BF16_GAINS, level=Level.GRID).table(
        "quadratic-intervention",
        _quadratic_rows,
        bootstrap,
        label="tab:quadratic-intervention",
        title="Immediate utility under quadratic scale selection",
        caption=(
            "Mean gains relative to the current state use all questions and are in units of 0.001, with paired 95% "
            "question-bootstrap intervals. Recovery counts use the original finite-step failures. The last row of a "
            "condition reports the paired utility advantage and net recovery differences. Outcomes use the computed "
            "BF16 intervention states."
        ),
        columns=QUADRATIC_COLUMNS,
        key_names=ACTIONS,
    )


def _quadratic_rows(updates: Updates, bootstrap: Bootstrap) -> list[InterventionRow]:
    """Quarter, quadratic and their difference."""
    quarter, quadratic = (updates.floats(name) for name in BF16_GAINS)
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


RULE_COLUMNS = (
    *IDENTITY,
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
    rows = tuple(row for updates in records.updates for row in _rule_rows(updates, settings))
    notes = notes_on(row.condition for row in rows)
    notes += tuple(kept_note(row.condition, "failures", row.without_scale, row.n) for row in rows if row.without_scale)
    if not rows:
        notes += (records.nothing(f"no condition has interventions: measure with {setting('level', 'grid')}"),)
    return TableResult(
        study="interventions",
        label="tab:interventions-main",
        title="Scale selection",
        caption=(
            "Utility units: 0.001. Recovery counts show quarter and selected scale (failure denominator); utility "
            "populations are listed separately. Brackets give paired 95% intervals. Bound selection uses FP64."
        ),
        rows=rows,
        panels=(Panel(RULE_COLUMNS),),
        notes=notes,
        key_names=RULES,
    )


def _rule_rows(updates: Updates, bootstrap: Bootstrap) -> list[RuleRow]:
    rows = []
    if updates.has(*BF16_GAINS):
        by_action = {row.key: row for row in _quadratic_rows(updates, bootstrap)}
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
        failures = next(row for row in bound_selected_rows(updates, bootstrap) if row.key == "failures")
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
