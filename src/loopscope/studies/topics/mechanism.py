"""Why updates fail: a right direction and a step too long, and how well slope and curvature predict the gain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from loopscope.path import Outcome, exceeds_margin
from loopscope.stats import Auroc, Bootstrap, Maximum, Mean, Ratio, Spearman
from loopscope.store import Level
from loopscope.studies import figures
from loopscope.studies.declare import IDENTITY, KEY, Column, Panel, Values, table, words
from loopscope.studies.populations import CONCAVE_PATHS, updates_with
from loopscope.studies.records import Updates

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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


MOST_COLUMNS = 4
"""Panels next to each other: each is wide enough for five tick labels."""
TALLEST_PANEL = 3.0
"""Inches of a single panel's height."""
MANY = 3000
"""Vector markers make a PDF slow to open; axes and text stay vectors."""
MEANINGS = {
    Outcome.FINITE_STEP_FAILURE: "Vermillion circles mark updates whose directions locally increase reference utility "
    "but whose full steps decrease it.",
    Outcome.DIRECTIONAL_FAILURE: "Blue triangles mark harmful updates with nonpositive initial slopes.",
    Outcome.PROGRESSING: "Grey points mark full updates that increase reference utility.",
    Outcome.NEUTRAL: "Black crosses mark updates that leave reference utility as it is.",
}
DRAWN = (Outcome.PROGRESSING, Outcome.DIRECTIONAL_FAILURE, Outcome.FINITE_STEP_FAILURE, Outcome.NEUTRAL)
"""From the bottom to the top: failures must not disappear below the many progressing updates."""


@figures.figure(
    "direction-progress",
    "Local improvement and full-step harm",
    paper="fig:direction-progress",
    summary="slope against full-step gain by outcome",
    over=updates_with("slope", "gain"),
)
def direction_progress(groups: tuple[Updates, ...], bootstrap: Bootstrap) -> figures.Picture | str:
    """Every record of every condition, a panel each; identical symmetric-log transforms on all axes."""
    present = [outcome for outcome in Outcome if any((group.outcome == outcome).any() for group in groups)]
    columns = min(MOST_COLUMNS, math.isqrt(len(groups) - 1) + 1)  # as many rows as columns, as in the paper
    rows = -(-len(groups) // columns)
    caption = (
        f"Each of the {sum(map(len, groups)):,} points is one question at one update: its initial slope A and its "
        "full-step gain ΔU, in nats, on symmetric-log axes that all panels share. "
        + " ".join(MEANINGS[outcome] for outcome in reversed(present))
    )
    described = [
        {
            "condition": str(group.condition),
            "records": len(group),
            "outcomes": {outcome.label: int((group.outcome == outcome).sum()) for outcome in Outcome},
            "ids": group.ids,
        }
        for group in groups
    ]

    def draw(figure: Figure) -> None:
        _panels(figure, groups, rows, columns)
        plain = {"linestyle": "none", "markersize": 5}
        handles = [figures.handle(figures.OUTCOMES[each], label=each.label, **plain) for each in reversed(present)]
        title = figures.shared_model([group.condition for group in groups]) or None
        figure.legend(handles=handles, title=title, loc="outside upper center", ncols=4, columnspacing=1.2)

    height = 0.55 + rows * min((figures.WIDTH / columns) * 0.98, TALLEST_PANEL)
    return figures.Picture(height, draw, caption, {"panels": described})


def _panels(figure: Figure, groups: Sequence[Updates], rows: int, columns: int) -> None:
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    both = [values for group in groups for values in (group.slope, group.gain)]
    threshold = figures.symlog_threshold(*both)
    limit = max(max(float(np.abs(values).max()) for values in both), threshold) * 1.6
    names = figures.names_of([group.condition for group in groups])
    for axes, group, name in zip(grid.flat, groups, names, strict=False):
        _points(axes, group)
        figures.symlog(axes, "xy", threshold, limit, 2)
        axes.set(xlim=(-limit, limit), ylim=(-limit, limit))
        axes.set_aspect("equal", adjustable="box")
        axes.axhline(0, color=figures.BLACK, linewidth=0.4, zorder=0)
        axes.axvline(0, color=figures.BLACK, linewidth=0.4, zorder=0)
        # Model and task on lines of their own: a panel is narrower than both together.
        model = figures.literal(group.condition.model_title)
        axes.set_title(name.replace(f"{model} ", f"{model}\n", 1), fontsize=7, linespacing=1.05)
    for axes in list(grid.flat)[len(groups) :]:
        axes.set_visible(False)
    for row in range(rows):
        grid[row, 0].set_ylabel(r"Full-step gain $\Delta U$")
    for index in range(columns):
        below = [axes for axes in grid[:, index] if axes.get_visible()][-1]
        below.set_xlabel(r"Initial slope $A$")
        below.tick_params(labelbottom=True)


def _points(axes: Axes, updates: Updates) -> None:
    many = len(updates) > MANY
    for outcome in DRAWN:
        inside, look = updates.outcome == outcome, figures.OUTCOMES[outcome]
        axes.plot(
            updates.slope[inside],
            updates.gain[inside],
            linestyle="none",
            markersize=(1.7 if look["marker"] == "." else 1.0) * (1.5 if many else 2.6),
            markeredgewidth=0.5 if outcome is Outcome.NEUTRAL else 0,
            alpha=0.5 if many else 0.75,
            rasterized=many,
            **look,
        )
