"""How many verdicts no rounding can overturn: outcomes, signs of A + Q, recoveries and bounds that are certified.

Certificates are about the readout of the stored states (docs/certificates.md). A readout that is not affine has none.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from loopscope.errors import setting
from loopscope.path import Outcome
from loopscope.stats import Bootstrap
from loopscope.studies.records import Records, Updates
from loopscope.studies.result import COUNT, IDENTITY, Column, Row, TableResult, column, percent, scientific
from loopscope.studies.usable_conditions import Selection, no_updates, notes_on


@dataclass(frozen=True)
class CertificateRow(Row):
    """The certificates of one condition."""

    updates: int
    certified: int
    """Updates whose outcome is certified."""
    share: float | None
    in_balls: int
    """Updates that needed Arb's balls for a verdict."""
    contradicted: int
    """Updates whose recorded outcome is another one than the certified."""
    signs: int
    """Updates whose sign of A + Q is certified."""
    failures: int
    """Certified finite-step failures."""
    recovered: int
    """Those that a quarter of the step certainly recovers."""
    lost: int
    """Those that it certainly does not."""
    safe: int
    """Updates with a certified safe scale."""
    slope_width: float | None
    """Median width of A's enclosure."""
    gain_width: float | None
    """Median width of ΔU's enclosure."""
    regret: float | None
    """Median certified bound of the regret."""


COLUMNS = (
    *IDENTITY,
    Column(("certified", "updates"), "Outcomes\ncertified", (COUNT, COUNT), template="{}/{}"),
    column("share", "Share (%)", percent(2)),
    column("in_balls", "By\nballs", COUNT),
    column("contradicted", "Recorded\notherwise", COUNT),
    Column(("signs", "updates"), "Sign of\nA+Q", (COUNT, COUNT), template="{}/{}"),
    Column(("recovered", "lost", "failures"), "Failures recovered /\nnot / all", (COUNT,) * 3, template="{} / {} / {}"),
    column("safe", "Safe\nscales", COUNT),
    column("slope_width", "Median\nwidth of A", scientific(1)),
    column("gain_width", "Median\nwidth of ΔU", scientific(1)),
    column("regret", "Median\nregret bound", scientific(1)),
)


def certificates(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[CertificateRow]:
    """One row per condition whose run holds certificates, or has them beside it."""
    found = [(updates, records.certificates(updates.condition)) for updates in records.updates]
    kept = tuple(updates for updates, frame in found if frame is not None)
    frames = {updates.condition: frame for updates, frame in found if frame is not None}
    missing = [updates.condition for updates, frame in found if frame is None]
    notes = [*notes_on(updates.condition for updates in kept)]
    curved = dict.fromkeys(condition.model_title for condition in missing if not condition.affine)
    notes += [f"{name} is not certified: its readout is not affine" for name in curved]
    without = dict.fromkeys(
        f"{condition.model_title} {condition.set_title}" for condition in missing if condition.affine
    )
    if without:
        how = f"measure with {setting('certify', True)}, or `loopscope certify RUN`"
        notes.append(f"without certificates: {', '.join(without)} ({how})")
    if not found:
        notes.append(no_updates(records))
    return Selection(kept, tuple(notes)).table(
        "certificates",
        lambda updates, _: _row(updates, frames[updates.condition]),
        bootstrap,
        label="tab:certificates",
        title="Verdicts that no rounding can overturn",
        caption=(
            "Enclosures of the exact readout of the stored states, rounding included: outcomes, signs of A + Q and "
            "quarter-step recoveries that they decide. How the model computed its states, and states rounded to BF16 "
            "after an intervention, are not part of it. Widths and the regret bound in nats."
        ),
        columns=COLUMNS,
    )


def _row(updates: Updates, frame: pl.DataFrame) -> CertificateRow:
    recorded = updates.frame.select("row", recorded=pl.Series(updates.outcome))
    joined = frame.join(recorded, on="row", how="inner")
    outcome, recovered = joined["outcome"], joined["recovered"]
    failed = outcome == Outcome.FINITE_STEP_FAILURE.value
    certified = joined.height - outcome.null_count()
    return CertificateRow(
        updates.condition,
        "",
        updates=joined.height,
        certified=certified,
        share=certified / joined.height if joined.height else None,
        in_balls=int((joined["arithmetic"] == "balls").sum()),
        contradicted=int((outcome != joined["recorded"]).sum() or 0),
        signs=joined.height - joined["prediction_sign"].null_count(),
        failures=int(failed.sum() or 0),
        recovered=int(recovered.sum() or 0),
        lost=int((~recovered).sum() or 0),
        safe=joined.height - joined["safe_scale"].null_count(),
        slope_width=_median(joined["slope"].list.get(1) - joined["slope"].list.get(0)),
        gain_width=_median(joined["gain"].list.get(1) - joined["gain"].list.get(0)),
        regret=_median(joined["regret_high"]),
    )


def _median(values: pl.Series) -> float | None:
    found = values.drop_nulls().median()
    return float(found) if isinstance(found, int | float) else None
