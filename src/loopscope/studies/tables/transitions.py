"""Quadratic scale selection across transitions of option tasks: Table "tab:hellaswag-transitions", Appendix E.7.

One scale is shared by all options of a question; each transition is an independent intervention before further
recurrence.
"""

from dataclasses import dataclass

import numpy as np

from loopscope.path import EFFECT_MARGIN, endpoint_prediction
from loopscope.stats import Bootstrap, Estimate, Mean
from loopscope.store import Level
from loopscope.studies.records import DepthSweep, Records, Updates
from loopscope.studies.result import COUNT, IDENTITY, Column, Panel, Row, TableResult, column, fixed, percent
from loopscope.studies.usable_conditions import OPTION_TASKS, select


@dataclass(frozen=True)
class TransitionRow(Row):
    """One transition of one option task."""

    failures: int
    recovered_quarter: int
    recovered_quadratic: int
    full: Estimate
    quarter: Estimate
    quadratic: Estimate
    """Mean gains over all questions."""
    sign_slope: Estimate
    sign_quadratic: Estimate
    over_full: Estimate
    """Paired quadratic-minus-full gain over all questions."""
    recovered_beyond_margin: int
    """Quadratic gains above 1e-4 among the failures."""
    failures_quarter: Estimate
    failures_quadratic: Estimate
    """Mean gains over the original failures."""
    accuracy_before: Estimate
    accuracy_after: Estimate
    """Share of questions whose best-scored option is the right one, at both ends."""


PANELS = (
    Panel(
        (
            *IDENTITY,
            column("failures", "Failures", COUNT),
            Column(
                ("recovered_quarter", "recovered_quadratic"),
                "Recovered\nquarter → quadratic",
                (COUNT, COUNT),
                latex=r"\makecell{Recovered\\quarter $\to$ quadratic}",
                template="{} → {}",
            ),
            column("full", "Full", fixed(3, 1e3)),
            column("quarter", "Quarter", fixed(3, 1e3)),
            column("quadratic", "Quadratic", fixed(3, 1e3)),
        ),
        title="(a) Recovery and mean immediate gain",
    ),
    Panel(
        (
            *IDENTITY,
            column("sign_slope", "Sign A (%)", percent(2), latex=r"Sign $A$ (\%)"),
            column("sign_quadratic", "Sign A+Q (%)", percent(2), latex=r"Sign $A+Q$ (\%)"),
            column(
                "over_full",
                "Quadratic - full [95% CI]",
                fixed(3, 1e3, interval=True),
                latex=r"Quadratic $-$ full [95\% CI]",
            ),
            column("accuracy_before", "before", percent(1), group="Accuracy (%)"),
            column("accuracy_after", "after", percent(1), group="Accuracy (%)"),
        ),
        title="(b) Endpoint prediction and paired gain",
    ),
)


def transitions(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[TransitionRow]:
    """One row per transition of every option task."""
    return select(records, "grid_gain", "quadratic_gain", level=Level.GRID, about=OPTION_TASKS).table(
        "transitions",
        lambda updates, resampling: _row(updates, _sweep(records, updates), resampling),
        bootstrap,
        label="tab:hellaswag-transitions",
        title="Quadratic scale selection across transitions",
        caption=(
            "Option tasks, with one scale shared by all options of a question. (a) Recovery counts use the original "
            "finite-step failures. Mean gains use all questions, in units of 0.001. (b) Full-step sign accuracy and "
            "paired quadratic-minus-full gain with 95% question-bootstrap intervals. Each transition is an "
            "independent intervention before further recurrence."
        ),
        panels=PANELS,
    )


def _sweep(records: Records, updates: Updates) -> DepthSweep | None:
    return next((sweep for sweep in records.sweeps if sweep.condition.same_set(updates.condition)), None)


def _accuracy(sweep: DepthSweep | None, depth: int) -> Mean:
    if sweep is None or sweep.correct is None or depth not in sweep.depths:
        return Mean([])
    return Mean(sweep.correct[:, sweep.depths.index(depth)])


def _row(updates: Updates, sweep: DepthSweep | None, bootstrap: Bootstrap) -> TransitionRow:
    gain, quarter, quadratic = updates.gain, updates.quarter_gain, updates.floats("quadratic_gain")
    predicted = endpoint_prediction(updates.slope, updates.quadratic)
    everyone = bootstrap.estimate(
        {
            "full": Mean(gain),
            "quarter": Mean(quarter),
            "quadratic": Mean(quadratic),
            "sign_slope": Mean(np.sign(updates.slope) == np.sign(gain)),
            "sign_quadratic": Mean(np.sign(predicted) == np.sign(gain)),
            "over_full": Mean(quadratic - gain),
        }
    )
    failures = updates.finite_step
    among = bootstrap.estimate(
        {"failures_quarter": Mean(quarter[failures]), "failures_quadratic": Mean(quadratic[failures])}
    )
    depth = updates.condition.transition or 0
    accuracy = bootstrap.estimate(
        {
            "accuracy_before": _accuracy(sweep, depth),
            "accuracy_after": _accuracy(sweep, depth + 1),
        }
    )
    return TransitionRow(
        updates.condition,
        "",
        failures=int(failures.sum()),
        recovered_quarter=int((quarter[failures] > 0).sum()),
        recovered_quadratic=int((quadratic[failures] > 0).sum()),
        recovered_beyond_margin=int((quadratic[failures] > EFFECT_MARGIN).sum()),
        **everyone,
        **among,
        **accuracy,
    )
