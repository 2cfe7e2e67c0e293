"""Finite-step failures of single tokens: Table "tab:native-continue", Appendix E.8.

Utility is the log probability of one reference token; in an option task those are the tokens of the right option. All
estimates are token-weighted; intervals resample questions, keeping their tokens together, and recompute every ratio.
"""

from dataclasses import dataclass

import numpy as np

from loopscope.errors import setting
from loopscope.path import Outcome, classify, exceeds_margin
from loopscope.stats import Bootstrap, Clusters, Estimate
from loopscope.studies.records import Records, Tokens
from loopscope.studies.result import COUNT, IDENTITY, Column, Panel, Row, TableResult, column, fixed, percent
from loopscope.studies.usable_conditions import notes_on


@dataclass(frozen=True)
class TokenRow(Row):
    """One transition."""

    questions: int
    """Questions with a position that continues through the transition."""
    positions: int
    """Reference prediction positions that continue through the transition."""
    stored: int
    """Reference prediction positions, continuing or not."""
    failures: int
    failure_rate: Estimate
    recovered_quarter: int
    quarter_rate: Estimate
    recovered_quadratic: int
    quadratic_rate: Estimate
    full: Estimate
    quarter: Estimate
    quadratic: Estimate
    """Mean gains over all continuing positions."""
    over_full: Estimate
    over_quarter: Estimate
    """Paired advantages of the quadratic rule."""
    beyond_margin: int
    """Failures with A > 1e-4 and ΔU < −1e-4."""


def _counted(count: str, rate: str, head: str) -> Column:
    return Column((count, rate), f"{head} (%)", (COUNT, percent(2)), template="{} ({})")


PANELS = (
    Panel(
        (
            *IDENTITY,
            column("positions", "Positions", COUNT),
            _counted("failures", "failure_rate", "Finite-step failures"),
            _counted("recovered_quarter", "quarter_rate", "Quarter recovered"),
            _counted("recovered_quadratic", "quadratic_rate", "Quadratic recovered"),
        ),
        title="(a) Failure counts and recovery",
    ),
    Panel(
        (
            *IDENTITY,
            column("full", "Full", fixed(3, 1e3)),
            column("quarter", "Quarter", fixed(3, 1e3)),
            column("quadratic", "Quadratic", fixed(3, 1e3)),
            column(
                "over_full",
                "Quadratic - full\n[95% CI]",
                fixed(3, 1e3, interval=True),
                latex=r"\makecell{Quadratic $-$ full\\{}[95\% CI]}",
            ),
            column(
                "over_quarter",
                "Quadratic - quarter\n[95% CI]",
                fixed(3, 1e3, interval=True),
                latex=r"\makecell{Quadratic $-$ quarter\\{}[95\% CI]}",
            ),
        ),
        title="(b) Utility over all continuing prediction positions",
    ),
)


def tokens(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[TokenRow]:
    """One row per transition of every run that was measured with token rows."""
    groups = list(records.tokens())
    rows = tuple(_row(group, bootstrap or Bootstrap()) for group in groups if group.frame.height)
    notes = notes_on(group.condition for group in groups) + _exited(groups)
    if not groups:
        notes += (records.nothing(f"no run holds token rows: measure with {setting('tokens', True)}"),)
    return TableResult(
        study="tokens",
        label="tab:native-continue",
        title="Finite-step failures in recurrent updates of single tokens",
        caption=(
            "(a) Failure rates use all continuing reference prediction positions (in option tasks those of the right "
            "option); recovery rates use the original failures. (b) Mean immediate gains and paired advantages are "
            "token-weighted reference log-probability increments, in units of 0.001. Paired 95% intervals resample "
            "questions, retaining their tokens together."
        ),
        rows=rows,
        panels=PANELS,
        notes=notes,
    )


def _exited(groups: list[Tokens]) -> tuple[str, ...]:
    """Which updates no reference token takes, one note per evaluation set."""
    exited: dict[str, list[str]] = {}
    for group in groups:
        if not group.frame.height:
            condition = group.condition
            exited.setdefault(f"{condition.model_title} {condition.set_title}", []).append(condition.update)
    return tuple(
        f"{name}: the exit policy takes no reference token through {', '.join(updates)}, so these have no row"
        for name, updates in exited.items()
    )


def _row(group: Tokens, bootstrap: Bootstrap) -> TokenRow:
    slope, gain = group.floats("slope"), group.floats("gain")
    quarter, quadratic = group.floats("quarter_gain"), group.floats("quadratic_gain")
    failed = np.asarray(classify(slope, gain) == Outcome.FINITE_STEP_FAILURE)
    clusters = Clusters.of(group.frame["row"].to_numpy())
    estimates = bootstrap.estimate(
        {
            "failure_rate": clusters.mean(failed),
            "quarter_rate": clusters.ratio(failed & (quarter > 0), failed),
            "quadratic_rate": clusters.ratio(failed & (quadratic > 0), failed),
            "full": clusters.mean(gain),
            "quarter": clusters.mean(quarter),
            "quadratic": clusters.mean(quadratic),
            "over_full": clusters.mean(quadratic - gain),
            "over_quarter": clusters.mean(quadratic - quarter),
        }
    )
    return TokenRow(
        group.condition,
        "",
        questions=clusters.count,
        positions=group.frame.height,
        stored=group.stored,
        failures=int(failed.sum()),
        recovered_quarter=int((failed & (quarter > 0)).sum()),
        recovered_quadratic=int((failed & (quadratic > 0)).sum()),
        beyond_margin=int(exceeds_margin(slope, gain).sum()),
        **estimates,
    )
