"""Why updates fail: a right direction with too long a step, and how well slope and curvature predict the gain."""

from __future__ import annotations

import numpy as np

from loopscope.path import Outcome, exceeds_margin
from loopscope.stats import Auroc, Maximum, Mean, Ratio, Spearman
from loopscope.store import Level
from loopscope.studies.declare import IDENTITY, KEY, Column, Panel, Values, table, words
from loopscope.studies.populations import CONCAVE_PATHS, updates_with
from loopscope.studies.records import Updates


@table(
    "mechanism",
    "Finite-step failures and endpoint prediction",
    paper="tab:mechanism-matrix",
    summary="finite-step failures; A and A+Q against the gain",
    over=updates_with("slope", "quadratic", "gain"),
    columns=(
        *IDENTITY,
        Column("Mean gain\n(1e-3)", "{mean_gain:+.2f}", per=1e-3),
        Column("Count", "{finite_step}/{harmful}", group="Finite-step failures"),
        Column("Share (%)", "{share:.2%}", group="Finite-step failures"),
        Column("A", "{sign_slope:.2%}", group="Sign accuracy (%)"),
        Column("A+Q", "{sign_quadratic:.2%}", group="Sign accuracy (%)"),
        Column("Rank\ncorr.", "{rank_correlation:.4f}"),
        Column("A", "{mae_slope:.2f}", per=1e-4, group="MAE (1e-4)"),
        Column("A+Q", "{mae_quadratic:.2f}", per=1e-4, group="MAE (1e-4)"),
    ),
)
def mechanism(updates: Updates) -> Values:
    """Counts are finite-step/harmful updates, and mean gain averages the full-step gain over all questions. Rank
    correlation is Spearman between A+Q and the full-step gain.
    """
    gain, slope, predicted = updates.gain, updates.slope, updates.predicted
    return {
        "mean_gain": Mean(gain),
        "finite_step": updates.finite_step.sum(),
        "harmful": updates.harmful.sum(),
        "share": Ratio(updates.finite_step, updates.harmful),  # both counts vary with the resample
        **{name: Mean(right) for name, right in updates.right_signs.items()},
        "rank_correlation": Spearman(predicted, gain),
        "mae_slope": Mean(np.abs(slope - gain)),
        "mae_quadratic": Mean(np.abs(predicted - gain)),
    }


@table(
    "failure-shares",
    "Finite-step failure shares and margin counts",
    paper="tab:mechanism-intervals",
    summary="failure shares with intervals, margin counts",
    over=updates_with("slope", "gain"),
    columns=(
        *IDENTITY,
        Column("Failure share (%)\nwith 95% CI", "{share:.2%}", ci=True),
        Column("Failures beyond\nthe margin", "{beyond_margin}"),
        Column("Neutral\nupdates", "{neutral}"),
    ),
)
def failure_shares(updates: Updates) -> Values:
    """Shares are relative to harmful updates; both counts are recomputed in every question resample. Margin counts
    require both the slope and the loss to exceed 0.0001.
    """
    return {
        "share": Ratio(updates.finite_step, updates.harmful),
        "beyond_margin": exceeds_margin(updates.slope, updates.gain).sum(),
        "neutral": (updates.outcome == Outcome.NEUTRAL).sum(),
    }


@table(
    "exact-kl",
    "Numerical check of the exact endpoint correction",
    paper="tab:exact-kl",
    summary="the exact endpoint correction, computed independently",
    over=updates_with("kl_correction", level=Level.GRID, about=CONCAVE_PATHS),
    columns=(
        *IDENTITY,
        Column("Maximum residual", "{max_residual:.3e}"),
        Column("Inequality satisfied", "{satisfied}/{failures}"),
    ),
)
def exact_kl(updates: Updates) -> Values:
    """The residual compares the full-step gain with the slope minus the KL correction, which is computed independently
    from endpoint logits. The last column counts finite-step failures whose slope is positive and below that correction
    numerically.
    """
    # Under the paper's protocol, those of the same FP32 readout.
    own = updates.has("kl_slope", "kl_gain")
    slope, gain = (updates.floats(f"kl_{name}" if own else name) for name in ("slope", "gain"))
    correction = updates.floats("kl_correction")
    ordered, residual = (slope > 0) & (slope < correction), gain - (slope - correction)
    exceptions = np.flatnonzero(updates.finite_step & ~ordered)
    worst = exceptions[np.argmin(gain[exceptions])] if exceptions.size else None
    return {
        "max_residual": Maximum(np.abs(residual)).value(),
        "satisfied": (updates.finite_step & ordered).sum(),
        "failures": updates.finite_step.sum(),
        # Of the failure without that inequality; of several, the one with the largest loss.
        "exception_gain": None if worst is None else gain[worst],
        "exception_residual": None if worst is None else residual[worst],
    }


SIGNALS = {
    "update_norm": "Update norm",
    "relative_change": "Relative change",
    "cosine_change": "Cosine change",
    "output_kl": "Output KL",
    "entropy_change": "Entropy change",
    "slope": "A",
    "slope_quadratic": "A+Q",
}
STORED = tuple(SIGNALS)[:5]
RISES_WITH_RISK = "entropy_change"
"""Larger risk is the negative of each signal except this one; kept whatever the outcome says."""


@table(
    "diagnostics",
    "State, output, and task-geometry diagnostics",
    paper="tab:diagnostic-ranking",
    summary="state, output and geometry signals: Spearman, AUROC",
    over=updates_with(*STORED, level=Level.GRID),
    columns=tuple(
        Panel((words("Signal", KEY), Column(head, f"{{{name}:.4f}}")), title, across="condition.as_head")
        for name, head, title in (
            ("spearman", "Spearman", "Raw Spearman correlation with the full-step gain"),
            ("auroc", "AUROC", "Harmful-update AUROC"),
        )
    ),
    keys=SIGNALS,
)
def diagnostics(updates: Updates) -> Values:
    """Raw correlations retain signal orientation, and AUROC uses fixed risk signs: the negative of each signal except
    entropy change.
    """
    signals = {name: updates.floats(name) for name in STORED}
    signals |= {"slope": updates.slope, "slope_quadratic": updates.predicted}
    return {
        name: {
            "spearman": Spearman(values, updates.gain),
            "auroc": Auroc(values, updates.harmful, descending=name != RISES_WITH_RISK),
        }
        for name, values in signals.items()
    }
