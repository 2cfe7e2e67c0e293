"""Why updates fail: a right direction and a step too long, and how well slope and curvature predict the gain.

Of single tokens (Appendix E.8) utility is the log probability of one reference token; in an option task those are the
tokens of the right option. Estimates are token-weighted; intervals resample questions, keeping their tokens together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from loopscope.errors import setting
from loopscope.path import Outcome, classify, exceeds_margin
from loopscope.stats import Auroc, Bootstrap, Mean, Ratio, Spearman
from loopscope.store import Level
from loopscope.studies import figures
from loopscope.studies.declare import IDENTITY, KEY, Column, Values, panel, table, words
from loopscope.studies.populations import CONCAVE_PATHS, Population, Selection, notes_on, updates_with
from loopscope.studies.records import Floats, Mask, Records, Tokens, Updates, largest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@table(
    "mechanism",
    "Finite-step failures and endpoint prediction",
    updates_with("slope", "quadratic", "gain"),
    *IDENTITY,
    Column("Mean gain\n(1e-3)", "{mean_gain:+.2f}", per=1e-3),
    Column("Count", "{finite_step}/{harmful}", group="Finite-step failures"),
    Column("Share (%)", "{share:.2%}", group="Finite-step failures"),
    Column("A", "{sign_slope:.2%}", group="Sign accuracy (%)"),
    Column("A+Q", "{sign_quadratic:.2%}", group="Sign accuracy (%)"),
    Column("Rank\ncorr.", "{rank_correlation:.4f}"),
    Column("A", "{mae_slope:.2f}", per=1e-4, group="MAE (1e-4)"),
    Column("A+Q", "{mae_quadratic:.2f}", per=1e-4, group="MAE (1e-4)"),
    paper="tab:mechanism-matrix",
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
    updates_with("slope", "gain"),
    *IDENTITY,
    Column("Failure share (%)\nwith 95% CI", "{share:.2%}", ci=True),
    Column("Failures beyond\nthe margin", "{beyond_margin}"),
    Column("Neutral\nupdates", "{neutral}"),
    paper="tab:mechanism-intervals",
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
    updates_with("kl_correction", level=Level.GRID, about=CONCAVE_PATHS),
    *IDENTITY,
    Column("Maximum residual", "{max_residual:.3e}"),
    Column("Inequality satisfied", "{satisfied}/{failures}"),
    paper="tab:exact-kl",
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
        "max_residual": largest(residual),
        "satisfied": (updates.finite_step & ordered).sum(),
        "failures": updates.finite_step.sum(),
        # Of the failure without that inequality; of several, the one with the largest loss.
        "exception_gain": None if worst is None else gain[worst],
        "exception_residual": None if worst is None else residual[worst],
    }


STORED = ("update_norm", "relative_change", "cosine_change", "output_kl", "entropy_change")
SIGNALS = {name: name.replace("_", " ").capitalize() for name in STORED} | {"output_kl": "Output KL"}
SIGNALS |= {"slope": "A", "slope_quadratic": "A+Q"}
RISES_WITH_RISK = "entropy_change"  # larger risk is the negative of each signal except this one


@table(
    "diagnostics",
    "State, output, and task-geometry diagnostics",
    updates_with(*STORED, level=Level.GRID),
    *(
        panel(title, words("Signal", KEY), Column(head, f"{{{name}:.4f}}"), across="condition.as_head")
        for name, head, title in (
            ("spearman", "Spearman", "Raw Spearman correlation with the full-step gain"),
            ("auroc", "AUROC", "Harmful-update AUROC"),
        )
    ),
    paper="tab:diagnostic-ranking",
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


def _continuing(records: Records) -> Selection:
    """Every transition with continuing tokens; transitions that no reference token takes are named."""
    groups = list(records.tokens())
    exited = dict.fromkeys(str(group.condition) for group in groups if not group.frame.height)
    notes = notes_on(group.condition for group in groups)
    notes += tuple(f"{each}: the exit policy takes no reference token through it, so it has no row" for each in exited)
    if not groups:
        notes += (records.nothing(f"no run holds token rows: measure with {setting('tokens', True)}"),)
    return Selection(tuple(group for group in groups if group.frame.height), notes)


@table(
    "tokens",
    "Finite-step failures in recurrent updates of single tokens",
    Population(_continuing, "--tokens"),
    panel(
        "(a) Failure counts and recovery",
        *(*IDENTITY, Column("Positions", "{positions}")),
        Column("Finite-step failures (%)", "{failures} ({failure_rate:.2%})"),
        Column("Quarter recovered (%)", "{recovered_quarter} ({quarter_rate:.2%})"),
        Column("Quadratic recovered (%)", "{recovered_quadratic} ({quadratic_rate:.2%})"),
    ),
    panel(
        "(b) Utility over all continuing prediction positions",
        *IDENTITY,
        *(Column(name.title(), f"{{{name}:.3f}}", per=1e-3) for name in ("full", "quarter", "quadratic")),
        Column("Quadratic − full\n[95% CI]", "{over_full:.3f}", per=1e-3, ci=True),
        Column("Quadratic − quarter\n[95% CI]", "{over_quarter:.3f}", per=1e-3, ci=True),
    ),
    paper="tab:native-continue",
)
def tokens(group: Tokens) -> Values:
    """(a) Failure rates use all continuing reference prediction positions (in option tasks those of the right option);
    recovery rates use the original failures. (b) Mean immediate gains and paired advantages are token-weighted
    reference log-probability increments, in units of 0.001. Paired 95% intervals resample questions, retaining their
    tokens together.
    """
    slope, gain, quarter, quadratic = map(group.floats, ("slope", "gain", "quarter_gain", "quadratic_gain"))
    failed = np.asarray(classify(slope, gain) == Outcome.FINITE_STEP_FAILURE)
    row, shorter = group.frame["row"].to_numpy(), {"quarter": quarter, "quadratic": quadratic}

    def rate(values: Floats | Mask, of: Floats | Mask | None = None) -> Ratio:
        return Ratio.by_cluster(row, values, np.ones(row.size) if of is None else of)

    return {
        "questions": group.frame["row"].n_unique(),
        "positions": group.frame.height,
        "stored": group.stored,
        "failures": failed.sum(),
        "failure_rate": rate(failed),
        **{f"recovered_{name}": (failed & (gains > 0)).sum() for name, gains in shorter.items()},
        **{f"{name}_rate": rate(failed & (gains > 0), failed) for name, gains in shorter.items()},
        **{name: rate(gains) for name, gains in {"full": gain, **shorter}.items()},
        "over_full": rate(quadratic - gain),
        "over_quarter": rate(quadratic - quarter),
        "beyond_margin": exceeds_margin(slope, gain).sum(),
    }


MOST_COLUMNS = 4  # panels next to each other: each is wide enough for five tick labels
TALLEST_PANEL = 3.0  # inches of a single panel's height
MANY = 3000  # points from which on they are drawn as pixels: vector markers make a PDF slow to open
# From the bottom to the top: failures must not disappear below the many progressing updates.
DRAWN = (Outcome.PROGRESSING, Outcome.DIRECTIONAL_FAILURE, Outcome.FINITE_STEP_FAILURE, Outcome.NEUTRAL)


@figures.figure(
    "direction-progress",
    "Local improvement and full-step harm",
    paper="fig:direction-progress",
    over=updates_with("slope", "gain"),
)
def direction_progress(groups: tuple[Updates, ...], bootstrap: Bootstrap) -> figures.Picture | str:
    """Each point is one question at one update: its initial slope A and full-step gain ΔU, in nats, on symmetric-log
    axes that all panels share. Vermillion circles mark updates whose directions locally increase reference utility but
    whose full steps decrease it, blue triangles harmful updates with nonpositive initial slopes, grey points full
    updates that increase reference utility, black crosses updates that leave it as it is.
    """
    present = [outcome for outcome in reversed(Outcome) if any((group.outcome == outcome).any() for group in groups)]
    columns = min(MOST_COLUMNS, math.isqrt(len(groups) - 1) + 1)  # as many rows as columns, as in the paper
    rows = -(-len(groups) // columns)
    described = [
        {
            "condition": str(group.condition),
            "records": len(group),
            "ids": group.ids,
            "outcomes": {outcome.label: int((group.outcome == outcome).sum()) for outcome in Outcome},
        }
        for group in groups
    ]

    def draw(figure: Figure) -> None:
        _panels(figure, groups, rows, columns)
        plain = {"linestyle": "none", "markersize": 5}
        handles = [figures.handle(figures.OUTCOMES[each], label=each.label, **plain) for each in present]
        title = figures.shared_model([group.condition for group in groups]) or None
        figure.legend(handles=handles, title=title, loc="outside upper center", ncols=4, columnspacing=1.2)

    height = 0.55 + rows * min((figures.WIDTH / columns) * 0.98, TALLEST_PANEL)
    return figures.Picture(height, draw, {"panels": described}, f"{sum(map(len, groups)):,} points.")


def _panels(figure: Figure, groups: Sequence[Updates], rows: int, columns: int) -> None:
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    both = np.concatenate([values for group in groups for values in (group.slope, group.gain)])
    threshold = figures.symlog_threshold(both)
    limit = max(float(np.abs(both).max()), threshold) * 1.6
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
    figures.hide_empty(grid, len(groups))
    for axes in grid[:, 0]:
        axes.set_ylabel(r"Full-step gain $\Delta U$")
    for column in grid.T:
        below = [axes for axes in column if axes.get_visible()][-1]
        below.set_xlabel(r"Initial slope $A$")
        below.tick_params(labelbottom=True)


def _points(axes: Axes, updates: Updates) -> None:
    many = len(updates) > MANY
    for outcome in DRAWN:
        inside, look = updates.outcome == outcome, figures.OUTCOMES[outcome]
        size = (1.7 if look["marker"] == "." else 1.0) * (1.5 if many else 2.6)
        edge = 0.5 if outcome is Outcome.NEUTRAL else 0
        how: Any = {"linestyle": "none", "alpha": 0.5 if many else 0.75, "rasterized": many, **look}
        axes.plot(updates.slope[inside], updates.gain[inside], markersize=size, markeredgewidth=edge, **how)
