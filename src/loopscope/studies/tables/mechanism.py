"""Why updates fail: a right direction with too long a step, and how well slope and curvature predict the gain.

- `mechanism` (Table "tab:mechanism-matrix", Section 4.2): finite-step failures; A and A + Q against ΔU.
- `failure_shares` (Table "tab:mechanism-intervals", Appendix E.2): failure shares with intervals and margin counts.
- `exact_kl` (Table "tab:exact-kl", Appendix E.2): a numerical check of the exact endpoint correction ΔU = A − C.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loopscope.path import Outcome, endpoint_prediction, exceeds_margin
from loopscope.stats import Bootstrap, Estimate, Mean, Ratio, Spearman
from loopscope.stats import bootstrap as estimate
from loopscope.store import Level
from loopscope.studies.records import Records, Updates
from loopscope.studies.result import (
    COUNT,
    IDENTITY,
    Column,
    Row,
    TableResult,
    column,
    fixed,
    percent,
    scientific,
)
from loopscope.studies.usable_conditions import CONCAVE_PATHS, select


@dataclass(frozen=True)
class MechanismRow(Row):
    """One condition."""

    mean_gain: Estimate
    """Mean of ΔU over all questions."""
    finite_step: int
    harmful: int
    share: Estimate
    """Finite-step failures among harmful updates; both counts vary with the resample."""
    sign_slope: Estimate
    """How often sign(A) = sign(ΔU)."""
    sign_quadratic: Estimate
    """How often sign(A + Q) = sign(ΔU)."""
    rank_correlation: Estimate
    """Spearman between A + Q and ΔU."""
    mae_slope: Estimate
    """Mean |A − ΔU|."""
    mae_quadratic: Estimate
    """Mean |A + Q − ΔU|."""


MECHANISM_COLUMNS = (
    *IDENTITY,
    column("mean_gain", "Mean gain\n(1e-3)", fixed(2, 1e3, sign=True)),
    Column(("finite_step", "harmful"), "Count", (COUNT, COUNT), group="Finite-step failures", template="{}/{}"),
    column("share", "Share (%)", percent(2), group="Finite-step failures"),
    column("sign_slope", "A", percent(2), latex="$A$", group="Sign accuracy (%)"),
    column("sign_quadratic", "A+Q", percent(2), latex="$A+Q$", group="Sign accuracy (%)"),
    column("rank_correlation", "Rank\ncorr.", fixed(4)),
    column("mae_slope", "A", fixed(2, 1e4), latex="$A$", group="MAE (1e-4)"),
    column("mae_quadratic", "A+Q", fixed(2, 1e4), latex="$A+Q$", group="MAE (1e-4)"),
)


def mechanism(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[MechanismRow]:
    """One row per condition; every estimate of a condition shares its question resamples."""
    chosen = select(records, "slope", "quadratic", "gain")
    return chosen.table(
        "mechanism",
        _mechanism_row,
        bootstrap,
        label="tab:mechanism-matrix",
        title="Finite-step failures and endpoint prediction",
        caption=(
            "Counts are finite-step/harmful updates, and mean gain averages the full-step gain over all questions. "
            "Rank correlation is Spearman between A+Q and the full-step gain."
        ),
        columns=MECHANISM_COLUMNS,
    )


def _mechanism_row(updates: Updates, bootstrap: Bootstrap) -> MechanismRow:
    gain, slope = updates.gain, updates.slope
    predicted = endpoint_prediction(slope, updates.quadratic)
    estimates = bootstrap.estimate(
        {
            "mean_gain": Mean(gain),
            "share": Ratio(updates.finite_step, updates.harmful),
            "sign_slope": Mean(np.sign(slope) == np.sign(gain)),
            "sign_quadratic": Mean(np.sign(predicted) == np.sign(gain)),
            "rank_correlation": Spearman(predicted, gain),
            "mae_slope": Mean(np.abs(slope - gain)),
            "mae_quadratic": Mean(np.abs(predicted - gain)),
        }
    )
    return MechanismRow(
        updates.condition,
        "",
        finite_step=int(updates.finite_step.sum()),
        harmful=int(updates.harmful.sum()),
        **estimates,
    )


@dataclass(frozen=True)
class FailureShareRow(Row):
    """One condition."""

    share: Estimate
    """Finite-step failures among harmful updates."""
    beyond_margin: int
    """Failures with both A > 1e-4 and −ΔU > 1e-4."""
    neutral: int
    """Updates with ΔU = 0 exactly."""


FAILURE_SHARE_COLUMNS = (
    *IDENTITY,
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
    return chosen.table(
        "failure-shares",
        _failure_share_row,
        bootstrap,
        label="tab:mechanism-intervals",
        title="Finite-step failure shares and margin counts",
        caption=(
            "Shares are relative to harmful updates; both counts are recomputed in every question resample. "
            "Margin counts require both the slope and the loss to exceed 0.0001."
        ),
        columns=FAILURE_SHARE_COLUMNS,
    )


def _failure_share_row(updates: Updates, bootstrap: Bootstrap) -> FailureShareRow:
    return FailureShareRow(
        updates.condition,
        "",
        share=estimate(Ratio(updates.finite_step, updates.harmful), bootstrap),
        beyond_margin=int(exceeds_margin(updates.slope, updates.gain).sum()),
        neutral=int((updates.outcome == Outcome.NEUTRAL).sum()),
    )


@dataclass(frozen=True)
class ExactKLRow(Row):
    """One condition with an affine reference-token readout."""

    max_residual: float | None
    """max |ΔU − (A − C)|, C computed from endpoint logits and independently of A."""
    satisfied: int
    """Finite-step failures with 0 < A < C numerically."""
    failures: int
    exception_gain: float | None
    exception_residual: float | None
    """ΔU and the signed residual of the failure without that inequality; of several, the one with the largest loss."""


EXACT_KL_COLUMNS = (
    *IDENTITY,
    column("max_residual", "Maximum residual", scientific(3)),
    Column(("satisfied", "failures"), "Inequality satisfied", (COUNT, COUNT), template="{}/{}"),
)


def exact_kl(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[ExactKLRow]:
    """One row per condition whose path is concave; maxima and counts have no intervals."""
    return select(records, "kl_correction", level=Level.GRID, about=CONCAVE_PATHS).table(
        "exact-kl",
        _exact_kl_row,
        bootstrap,
        label="tab:exact-kl",
        title="Numerical check of the exact endpoint correction",
        caption=(
            "The residual compares the full-step gain with the slope minus the KL correction, which is computed "
            "independently from endpoint logits. The last column counts finite-step failures whose slope is positive "
            "and below that correction numerically."
        ),
        columns=EXACT_KL_COLUMNS,
    )


def _exact_kl_row(updates: Updates, _: Bootstrap) -> ExactKLRow:
    correction = updates.floats("kl_correction")
    slope, gain = updates.slope, updates.gain
    if updates.has("kl_slope", "kl_gain"):  # the paper's own, of the same FP32 readout
        slope, gain = updates.floats("kl_slope"), updates.floats("kl_gain")
    ordered = (slope > 0) & (slope < correction)
    residual = gain - (slope - correction)
    exceptions = np.flatnonzero(updates.finite_step & ~ordered)
    worst = exceptions[np.argmin(gain[exceptions])] if exceptions.size else None
    return ExactKLRow(
        updates.condition,
        "",
        max_residual=float(np.abs(residual).max()),
        satisfied=int((updates.finite_step & ordered).sum()),
        failures=int(updates.finite_step.sum()),
        exception_gain=None if worst is None else float(gain[worst]),
        exception_residual=None if worst is None else float(residual[worst]),
    )
