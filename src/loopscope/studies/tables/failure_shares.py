"""Finite-step failure shares and margin counts: Table "tab:mechanism-intervals", Appendix E.2."""

from dataclasses import dataclass

from loopscope.path import Outcome, exceeds_margin
from loopscope.stats import Bootstrap, Estimate, Ratio
from loopscope.stats import bootstrap as estimate
from loopscope.studies.records import Records, Updates
from loopscope.studies.result import COUNT, MODEL, TASK, UPDATE, Panel, Row, TableResult, column, percent
from loopscope.studies.selection import layout_notes, select


@dataclass(frozen=True)
class FailureShareRow(Row):
    """One condition."""

    share: Estimate
    """Finite-step failures among harmful updates."""
    beyond_margin: int
    """Failures with both A > 1e-4 and −ΔU > 1e-4."""
    neutral: int
    """Updates with ΔU = 0 exactly."""
    layout_sensitive: int
    """Updates whose outcome another batch layout could have made another."""


COLUMNS = (
    MODEL,
    TASK,
    UPDATE,
    column(
        "share",
        "Failure share (%)\nwith 95% CI",
        percent(2, interval=True),
        latex=r"\makecell{Failure share (\%)\\with 95\% CI}",
    ),
    column("beyond_margin", "Failures beyond\nthe margin", COUNT),
    column("neutral", "Neutral\nupdates", COUNT),
)


def failure_shares(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[FailureShareRow]:
    """One row per condition."""
    chosen = select(records, "slope", "gain")
    return TableResult(
        study="failure-shares",
        label="tab:mechanism-intervals",
        title="Finite-step failure shares and margin counts",
        caption=(
            "Shares are relative to harmful updates; both counts are recomputed in every question resample. "
            "Margin counts require both the slope and the loss to exceed 0.0001."
        ),
        rows=tuple(_row(updates, bootstrap) for updates in chosen.kept),
        panels=(Panel(COLUMNS),),
        notes=chosen.notes + layout_notes(chosen.kept),
    )


def _row(updates: Updates, bootstrap: Bootstrap | None) -> FailureShareRow:
    return FailureShareRow(
        updates.condition,
        "",
        share=estimate(Ratio(updates.finite_step, updates.harmful), bootstrap),
        beyond_margin=int(exceeds_margin(updates.slope, updates.gain).sum()),
        neutral=int((updates.outcome == Outcome.NEUTRAL).sum()),
        layout_sensitive=int(updates.layout_sensitive.sum()),
    )
