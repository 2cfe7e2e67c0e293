"""A training in steps: outcomes, gains and the best depth of every checkpoint, or of every call of a monitor."""

from __future__ import annotations

from dataclasses import dataclass

from loopscope.errors import setting
from loopscope.stats import Bootstrap, Estimate
from loopscope.studies.records import Records
from loopscope.studies.result import (
    COUNT,
    QUESTIONS,
    TASK,
    UPDATE,
    Panel,
    Row,
    Style,
    TableResult,
    column,
    fixed,
    label,
    percent,
)
from loopscope.studies.training import MEASURES, Moment, Training, no_steps, trainings, without_step
from loopscope.studies.usable_conditions import notes_on


@dataclass(frozen=True)
class TrainingRow(Row):
    """One update at one step."""

    series: str
    """The folder of the runs, or the monitor's log."""
    step: int
    progressing: Estimate
    neutral: Estimate
    directional: Estimate
    finite_step: Estimate
    """Shares of all questions."""
    harmful: Estimate
    share: Estimate
    """Finite-step failures among harmful updates."""
    gain: Estimate
    slope: Estimate
    quadratic: Estimate
    accumulated_curvature: Estimate
    """ΔU − A, the integral of (1 − α) φ''."""
    quadratic_scale: Estimate
    sign_slope: Estimate
    sign_quadratic: Estimate
    quarter_gain: Estimate
    quadratic_gain: Estimate
    quarter_recovery: Estimate
    quadratic_recovery: Estimate
    utility: Estimate
    """Mean utility after the update."""
    best_depth: Estimate
    """The depth with the highest mean utility."""
    best_utility: Estimate


_BARE = fixed(2, 1e3, sign=True)
_WITH_INTERVAL = fixed(2, 1e3, sign=True, interval=True)
_WHICH = (label("series", "Training"), TASK, UPDATE, column("step", "Step", COUNT))
PANELS = (
    Panel(
        (
            *_WHICH,
            QUESTIONS,
            column("progressing", "Progressing (%)", percent(1)),
            column("directional", "Directional\nfailures (%)", percent(1)),
            column("finite_step", "Finite-step failures (%)\n[95% CI]", percent(1, interval=True)),
            column("share", "Of harmful (%)\n[95% CI]", percent(1, interval=True)),
        ),
        title="(a) Outcomes",
    ),
    Panel(
        (
            *_WHICH,
            column("gain", "ΔU (1e-3)\n[95% CI]", _WITH_INTERVAL, latex=r"$\Delta U$ ($10^{-3}$)"),
            column("slope", "A (1e-3)\n[95% CI]", _WITH_INTERVAL, latex=r"$A$ ($10^{-3}$)"),
            column("quadratic", "Q (1e-3)", _BARE, latex=r"$Q$ ($10^{-3}$)"),
            column("accumulated_curvature", "ΔU−A (1e-3)", _BARE, latex=r"$\Delta U-A$ ($10^{-3}$)"),
            column("quadratic_scale", "α̂", fixed(2), latex=r"$\hat\alpha$"),
            column("quarter_gain", "φ(1/4)\n(1e-3)", _BARE, latex=r"$\varphi(1/4)$ ($10^{-3}$)"),
            column("quadratic_gain", "φ(α̂)\n(1e-3)", _BARE, latex=r"$\varphi(\hat\alpha)$ ($10^{-3}$)"),
        ),
        title="(b) Gains in nats",
    ),
    Panel(
        (
            *_WHICH,
            column("utility", "Utility after\n[95% CI]", fixed(4, interval=True)),
            column("best_depth", "Best depth\n[95% CI]", Style(interval=True)),
            column("best_utility", "Utility there\n[95% CI]", fixed(4, interval=True)),
        ),
        title="(c) Depth",
    ),
)


def training(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[TrainingRow]:
    """One row per training, evaluation set, update and step."""
    found = trainings(records, bootstrap)
    rows = tuple(_row(one, moment) for one in found for moments in one.updates.values() for moment in moments)
    notes = [*notes_on(row.condition for row in rows)]
    if unknown := without_step(records):
        how = f"name the model's folder step-1000, or measure with {setting('training_step', 1000)}"
        notes.append(f"without a training step: {', '.join(unknown)} ({how})")
    if any(moment.best.interval is None for one in found for moment in one.depths) and records.logs:
        notes.append("a monitor's log holds means and standard errors: its intervals are normal, its best depths bare")
    if not rows:
        notes.append(no_steps(records))
    return TableResult(
        study="training",
        label="tab:training",
        title="A training in steps",
        caption=(
            "Every update at every step of a training: shares of outcomes, finite-step failures among harmful updates, "
            "mean gain, slope, quadratic coefficient and accumulated curvature, mean predicted scale and what quarter "
            "and quadratic steps gain; mean utility after the update, and the depth with the highest one. "
            "95% intervals resample questions."
        ),
        rows=rows,
        panels=PANELS,
        notes=tuple(notes),
    )


def _row(one: Training, moment: Moment) -> TrainingRow:
    unknown = Estimate(None, moment.condition.n)
    depths = one.depths_at(moment.step)
    best = unknown if depths is None else depths.best
    there = unknown if depths is None or best.value is None else depths.utility[int(best.value)]
    measures = {name: moment.found.get(name, unknown) for name in MEASURES}
    return TrainingRow(
        moment.condition,
        f"step {moment.step}",
        series=one.title,
        step=moment.step,
        best_depth=best,
        best_utility=there,
        **measures,
    )
