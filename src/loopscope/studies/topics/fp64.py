"""What the FP64 path analysis says (Appendices E.5 and E.9): optima with their brackets, bounds from the curvature.

For a concave path the optimum is known up to a bracket, so errors and regrets are numerical intervals (not confidence
intervals); for a searched path both ends are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import polars as pl

from loopscope.errors import setting
from loopscope.path import (
    EFFECT_MARGIN,
    Interval,
    Outcome,
    beneficial_lower_bound,
    refine_bracket,
    regret_bound,
    root_sandwich,
    scale_bound,
    scale_error_interval,
    taylor_scale_bound,
    taylor_value_bound,
)
from loopscope.stats import Mean, Quantile
from loopscope.store import Level
from loopscope.studies.declare import IDENTITY, KEY, Column, Row, Values, table, words
from loopscope.studies.populations import AFFINE, CONCAVE_PATHS, updates_with, with_table
from loopscope.studies.records import Floats, Mask, Updates

PATHS = tuple(
    f"fp64_{name}"
    for name in (
        *("slope", "quadratic", "gain", "optimum_low", "optimum_high", "optimum_kind"),
        *("optimum_gain_low", "optimum_gain_high", "predicted_scale", "predicted_gain"),
    )
)
BOUNDS = ("fp64_M", "fp64_C_upper", "fp64_S")
BOUNDED = updates_with(*PATHS, *BOUNDS, level=Level.FULL, about=CONCAVE_PATHS)
ALL_COVERED = "every signed bound covers its numerical scale error: nothing to refine"
QUARTILES = {"p25": 0.25, "median": 0.5, "p75": 0.75}


class Fp64Paths:
    """Columns of `questions` that start with `fp64_`."""

    def __init__(self, updates: Updates, inside: Mask | None = None) -> None:
        self.updates = updates if inside is None else updates.where(inside)

    def floats(self, name: str) -> Floats:
        """A column without its prefix."""
        return self.updates.floats(f"fp64_{name}")

    @cached_property
    def primary(self) -> Mask:
        """A > 0, Q < 0 on the FP64 path itself (Appendix E.9: "computed within this run")."""
        return np.asarray((self.floats("slope") > 0) & (self.floats("quadratic") < 0))

    def of_kind(self, kind: str) -> Mask:
        """Questions whose optimum is `left`, `interior` or `right`."""
        return (self.updates.frame["fp64_optimum_kind"] == kind).to_numpy()

    @cached_property
    def error(self) -> Interval:
        """|α̂ − α*|, smallest and largest value that the bracket allows."""
        return scale_error_interval(*map(self.floats, ("predicted_scale", "optimum_low", "optimum_high")))

    @cached_property
    def regret(self) -> Interval:
        """φ(α*) − φ(α̂), from the bounds of φ(α*); never below zero."""
        predicted = self.floats("predicted_gain")
        low = np.maximum(self.floats("optimum_gain_low") - predicted, 0.0)
        return Interval(low, np.maximum(self.floats("optimum_gain_high") - predicted, low))

    def bounds(self) -> dict[str, Floats]:
        """M/(2κ), C̄/κ and S̄/κ of questions with Q < 0, before the minimum with one."""
        quadratic = self.floats("quadratic")
        return {
            "global": taylor_scale_bound(self.floats("M"), quadratic, capped=False),
            "integrated": scale_bound(self.floats("C_upper"), quadratic, capped=False),
            "signed": scale_bound(self.floats("S"), quadratic, capped=False),
        }


def primary_paths(updates: Updates) -> Fp64Paths:
    """The FP64 paths with A > 0, Q < 0."""
    return Fp64Paths(updates, Fp64Paths(updates).primary)


@table(
    "refined-optima",
    "Quadratic prediction against refined FP64 optimum estimates",
    updates_with(*PATHS, level=Level.FULL),
    *(*IDENTITY, words("Population", KEY), Column("n", "{n}")),
    Column("Mean scale error", "[{error_low:.6f}, {error_high:.6f}]"),
    Column("Mean numerical regret", "[{regret_low:.6e}, {regret_high:.6e}]"),
    Column("Optima at\n0 / inside / 1", "{left} / {interior} / {right}"),
    paper="tab:fp64-path-prediction",
    keys={"all": "All", "primary": "Primary", "interior": "Interior", "failures": "Finite-step failures"},
)
def refined_optima(updates: Updates) -> Values:
    """For concave paths the entries are numerical intervals propagated from derivative-root brackets; for other paths
    both ends use the best evaluated candidate. These intervals are numerical, not confidence intervals. Interior and
    failure rows are descriptive subsets.
    """
    populations = {
        "all": np.ones(len(updates), dtype=bool),
        "primary": updates.primary,  # of the stored slope and curvature, as in the paper
        "interior": Fp64Paths(updates).of_kind("interior"),
        "failures": updates.finite_step,
    }
    rows = {}
    for key, inside in populations.items():
        paths = Fp64Paths(updates, inside)
        rows[key] = {
            "n": inside.sum(),
            "error_low": Mean(paths.error.lower),
            "error_high": Mean(paths.error.upper),
            "regret_low": Mean(paths.regret.lower),
            "regret_high": Mean(paths.regret.upper),
            **{kind: paths.of_kind(kind).sum() for kind in ("left", "interior", "right")},
        }
    return rows


@table(
    "scale-bounds",
    "Scale bounds",
    BOUNDED,
    *(*IDENTITY, Column("n", "{n}")),
    Column("M/(2κ)", "{global_median:.4f} [{global_p75:.4f}]"),
    Column("C/κ", "{integrated_median:.4f} [{integrated_p75:.4f}]"),
    Column("S/κ", "{signed_median:.4f} [{signed_p75:.4f}]"),
    Column("C covers", "{integrated_covers}/{n}"),
    Column("S covers", "{signed_covers}/{n}"),
    Column("C/κ < 1 (%)", "{integrated_below_one:.1%}"),
    paper="tab:cloud-bound-comparison",
)
def scale_bounds(updates: Updates) -> Values:
    """Median and, in brackets, 75th percentile of each bound on A>0, Q<0, before the minimum with one. Coverage counts
    bounds covering the upper endpoints of the numerical scale errors.
    """
    paths = primary_paths(updates)
    bounds, error = paths.bounds(), paths.error.upper
    return {
        "n": error.size,
        **{f"{name}_{quartile}": Quantile(bounds[name], p) for name in bounds for quartile, p in QUARTILES.items()},
        **{f"{name}_covers": (values >= error).sum() for name, values in bounds.items()},
        "integrated_below_one": Mean(bounds["integrated"] < 1),
    }


@table(
    "integrated-bounds",
    "Distribution of the integrated bounds",
    BOUNDED,
    *(*IDENTITY, words("Estimate", KEY)),
    Column("C/κ", "{scale_bound:.4f}"),
    Column("C²/(2κ)", "{regret_bound:.3e}"),
    Column("Numerical regret upper", "{regret_upper:.3e}"),
    paper="tab:integrated-bound-distribution",
    keys={"mean": "Mean", "p25": "25th percentile", "median": "Median", "p75": "75th percentile", "maximum": "Maximum"},
)
def integrated_bounds(updates: Updates) -> Values:
    """Primary records (A>0, Q<0). Scale bound, regret bound, and upper endpoint of the numerical regret, before the
    minimum with one. The regret columns compare distributions, not individual records.
    """
    paths = primary_paths(updates)
    regret = regret_bound(paths.floats("C_upper"), paths.floats("quadratic"), refined=False)
    quantities = {"scale_bound": paths.bounds()["integrated"], "regret_bound": regret}
    quantities |= {"regret_upper": paths.regret.upper, "gain": paths.floats("gain")}
    rows: dict[str, Values] = {"mean": {name: Mean(values) for name, values in quantities.items()}}
    rows |= {key: {name: Quantile(values, p) for name, values in quantities.items()} for key, p in QUARTILES.items()}
    return rows | {"maximum": {name: max(values, default=None) for name, values in quantities.items()}}


@table(
    "guaranteed-signs",
    "What the curvature bounds guarantee of the full step",
    updates_with(*PATHS, *BOUNDS, "fp64_L_D", "fp64_mu", level=Level.FULL, about=CONCAVE_PATHS),
    *(*IDENTITY, Column("Signs\nguaranteed", "{signs}/{n}"), Column("Right", "{right_signs}/{signs}")),
    *(
        Column(head, f"{{{name}:.3e}}", group="Median")
        for head, name in (("|ΔU−(A+Q)|", "gap"), ("C", "integrated"), ("Mα³/6", "taylor"))
    ),
    *(Column("Strictly\nconcave", "{rooted}"), Column("Boundary\nin interval", "{inside}/{known}")),
    *(Column("Mean width\nof interval", "{width:.4f}"), Column("Root below 1", "{bounded}")),
    Column("Mean distance\nbound", "{distance:.4f}"),
    paper="thm:integrated-step",
)
def guaranteed_signs(updates: Updates) -> Values:
    """A+Q has the sign of the full-step gain wherever |A+Q| exceeds the integrated bound C; both C and Mα³/6 at α = 1
    bound the error of A+Q. Where the slope is positive and the curvature stays below zero, the end of progress lies
    between 2A/L and 2A/μ, cut off at one; roots guaranteed below one have a bound of the distance to the predicted
    root. Boundaries are those known up to a bracket.
    """
    paths = Fp64Paths(updates)
    slope, quadratic, gain = map(paths.floats, ("slope", "quadratic", "gain"))
    predicted, integrated = slope + quadratic, paths.floats("C_upper")
    sure = np.abs(predicted) > integrated
    rising = (slope > 0) & (paths.floats("mu") > 0)
    sandwich = root_sandwich(*(each[rising] for each in (slope, paths.floats("mu"), paths.floats("L_D"))))
    low, high = np.atleast_1d(sandwich.boundary_lower, sandwich.boundary_upper)
    bounded, distance = np.atleast_1d(sandwich.bounded, sandwich.distance)
    ends = [np.full(int(rising.sum()), np.nan)] * 2
    if updates.has_some("fp64_boundary"):
        ends = [updates.element("fp64_boundary", end)[rising] for end in (0, 1)]
    known = ~np.isnan(ends[0])
    taylor = taylor_value_bound(paths.floats("M"))
    medians = {"gap": np.abs(gain - predicted), "integrated": integrated, "taylor": taylor}
    return {
        "n": len(updates),
        "signs": sure.sum(),
        "right_signs": (sure & (np.sign(predicted) == np.sign(gain))).sum(),
        **{name: Quantile(values, 0.5) for name, values in medians.items()},
        "rooted": rising.sum(),
        "bounded": bounded.sum(),
        "known": known.sum(),
        "inside": ((ends[0] <= high) & (ends[1] >= low))[known].sum(),
        "width": Mean(high - low),
        "distance": Mean(distance[bounded]),
    }


@table(
    "bound-selected",
    "Selecting a scale from the negative-curvature bound",
    updates_with("fp64_L_D", "fp64_quarter_gain", level=Level.FULL, about=CONCAVE_PATHS),
    *(*IDENTITY, words("Population", KEY), Column("n", "{n}")),
    Column("Quarter-step\npositive gains", "{quarter_positive}"),
    Column("Bound-selected\npositive gains", "{selected_positive}"),
    Column("Mean gain\n[95% CI]", "{mean_gain:.4f}", per=1e-3, ci=True),
    Column("Gain over quarter\n[95% CI]", "{advantage:.4f}", per=1e-3, ci=True),
    paper="tab:curvature-selected-scale",
    keys={"primary": "Primary", "failures": "Finite-step failures"},
    notes=lambda rows, _: kept_notes(rows),
)
def bound_selected(updates: Updates) -> Values:
    """The selected scale is the smaller of one and nine tenths of twice the slope over the curvature bound, and zero
    where the FP64 slope is not positive. Both actions are evaluated in FP64 on the same records, and counts require
    positive utility gain. Gain columns are in units of 0.001 with paired 95% question-bootstrap intervals.
    """
    populations = {"primary": updates.primary, "failures": updates.finite_step}
    return {key: bound_selected_values(updates.where(inside)) for key, inside in populations.items()}


def bound_selected_values(updates: Updates) -> Values:
    """The gain at α_safe = min{1, 0.9·2A/L_D}; without a positive FP64 slope the rule keeps the current state."""
    paths = Fp64Paths(updates)
    safe, quarter = paths.floats("safe_scale"), paths.floats("quarter_gain")
    moved = ~np.isnan(safe)
    scale, gain = np.where(moved, safe, 0.0), np.where(moved, paths.floats("safe_gain"), 0.0)
    # At scale zero gain and guarantee are both zero: that says nothing of the guarantee.
    excess = (gain - beneficial_lower_bound(scale, paths.floats("slope"), paths.floats("L_D")))[moved]
    return {
        "n": len(updates),
        "quarter_positive": (quarter > 0).sum(),
        "selected_positive": (gain > 0).sum(),
        "mean_gain": Mean(gain),
        "advantage": Mean(gain - quarter),
        **{f"scale_{quartile}": Quantile(scale, p) for quartile, p in QUARTILES.items()},
        "scale_minimum": scale.min() if scale.size else None,
        "scale_maximum": scale.max() if scale.size else None,
        "without_scale": (~moved).sum(),
        "beyond_margin": (gain > EFFECT_MARGIN).sum(),
        "guarantee_margin": excess.min() if excess.size else None,
    }


def kept_notes(rows: Sequence[Row]) -> Iterable[str]:
    """What a reader must know of the questions that have no safe scale."""
    for row in (row for row in rows if row["without_scale"]):
        which = "primary" if row.key == "primary" else "finite-step failures"
        where = f"{row['without_scale']} of {row['n']} ({which}, {row.condition})"
        yield f"{where} have no positive FP64 slope: the bound keeps their current state, gain 0"


@table(
    "optimum-refinement",
    "Refinement of numerical optimum intervals",
    BOUNDED,
    *(*IDENTITY, words("Source row", KEY)),
    Column("Original\nerror upper", "{error_upper:.8f}"),
    Column("Unchanged\nS/κ", "{signed_bound:.8f}"),
    Column("Refined\nerror upper", "{refined_upper:.8f}"),
    Column("Margin\n(1e-5)", "{margin:.3f}", per=1e-5),
    paper="tab:bound-reference-refinement",
    notes=lambda rows, records: () if rows or not BOUNDED.choose(records).kept else (ALL_COVERED,),
)
def optimum_refinement(updates: Updates) -> Values:
    """Primary questions whose signed scale bound lies below the original error; none is the good case. The prediction
    and the bound are unchanged; endpoint derivatives and local curvature bounds refine the numerical optimum interval.
    Margin is bound minus refined error upper, in units of 0.00001.
    """
    paths = primary_paths(updates)
    paths = Fp64Paths(paths.updates, paths.bounds()["signed"] < paths.error.upper)
    predicted, low, high = map(paths.floats, ("predicted_scale", "optimum_low", "optimum_high"))
    # Slopes and curvatures at both ends, where the stored bracket can be narrowed.
    ends = [paths.updates.element(f"fp64_optimum_{name}", end) for name in ("slope", "curvature") for end in (0, 1)]
    inside = paths.of_kind("interior") & (low < high) & ~np.isnan(ends).any(axis=0) & (ends[2] > 0)
    bound, refined = paths.bounds()["signed"], np.full(len(paths.updates), np.nan)
    bracket = refine_bracket(*(each[inside] for each in (low, high, *ends)))
    refined[inside] = scale_error_interval(predicted[inside], bracket.lower, bracket.upper).upper
    return {
        f"{row:05d}": {  # five digits, as the paper writes it
            "error_upper": paths.error.upper[place],
            "signed_bound": bound[place],
            "refined_upper": refined[place] if inside[place] else None,
            "margin": bound[place] - refined[place] if inside[place] else None,
        }
        for place, row in enumerate(paths.updates.frame["source_row"])
    }


@table(
    "certificates",
    "Verdicts that no rounding can overturn",
    with_table("certificates", setting("certify", True), "--certify", AFFINE),
    *(*IDENTITY, Column("Outcomes\ncertified", "{certified}/{updates}"), Column("Share (%)", "{share:.2%}")),
    *(Column("By\nballs", "{in_balls}"), Column("Recorded\notherwise", "{contradicted}")),
    *(Column("Sign of\nA+Q", "{signs}/{updates}"), Column("Safe\nscales", "{safe}")),
    Column("Failures recovered /\nnot / all", "{recovered} / {lost} / {failures}"),
    *(Column("Median\nwidth of A", "{slope_width:.1e}"), Column("Median\nwidth of ΔU", "{gain_width:.1e}")),
    Column("Median\nregret bound", "{regret:.1e}"),
)
def certificates(updates: Updates) -> Values:
    """Enclosures of the exact readout of the stored states, rounding included: outcomes, signs of A + Q and
    quarter-step recoveries that they decide. How the model computed its states, and states rounded to BF16 after an
    intervention, are not part of it. Widths and the regret bound in nats.
    """
    recorded = updates.frame.select("row", recorded=pl.Series(updates.outcome))
    joined = updates.other_table("certificates").join(recorded, on="row", how="inner")
    recovered = pl.col("recovered")
    values: Values = joined.select(
        updates=pl.len(),
        certified=pl.col("outcome").count(),
        share=pl.col("outcome").count() / pl.len(),
        in_balls=(pl.col("arithmetic") == "balls").sum(),
        contradicted=(pl.col("outcome") != pl.col("recorded")).sum(),
        signs=pl.col("prediction_sign").count(),
        failures=(pl.col("outcome") == Outcome.FINITE_STEP_FAILURE.value).sum(),
        recovered=recovered.sum(),
        lost=(~recovered).sum(),
        safe=pl.col("safe_scale").count(),
        slope_width=(pl.col("slope").list.last() - pl.col("slope").list.first()).median(),
        gain_width=(pl.col("gain").list.last() - pl.col("gain").list.first()).median(),
        regret=pl.col("regret_high").median(),
    ).row(0, named=True)
    return values
