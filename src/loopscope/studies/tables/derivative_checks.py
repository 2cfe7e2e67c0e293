"""Derivative cross-checks: Appendix E.2 ("Execution and differentiation") and Appendix E.5.

A scalar second derivative along the chord against Q; the FP64 path against the stored one; third derivatives against
central differences of curvature; 257 nodes against 129; the envelope L_D against the largest sampled −φ''.
"""

from dataclasses import dataclass

import numpy as np

from loopscope.errors import setting
from loopscope.stats import Bootstrap, Estimate, Maximum, Quantile
from loopscope.store import Level
from loopscope.studies.conditions import Condition
from loopscope.studies.records import DepthSweep, Floats, Mask, Records, Updates
from loopscope.studies.result import (
    COUNT,
    IDENTITY,
    Column,
    Panel,
    Row,
    TableResult,
    column,
    fixed,
    scientific,
)
from loopscope.studies.usable_conditions import no_updates, notes_on, notes_on_bounds


@dataclass(frozen=True)
class DerivativeRow(Row):
    """One condition; what its level of measurement does not hold is None."""

    checks: int
    """Questions with a scalar second derivative."""
    passed: int
    """Those that agree to 1e-6 absolute or 1e-4 relative."""
    scalar_difference: float | None
    """Largest |Q − scalar Q|."""
    endpoint_difference: float | None
    """Largest |U of an end of the update − U of that depth in the sweep|."""
    endpoint_reread: float | None
    """The same of utilities that were read a second time from the states; under the paper's protocol only."""
    slope_difference: float | None
    quadratic_difference: float | None
    gain_difference: float | None
    """Largest |FP64 − stored| of A, Q and ΔU."""
    primary_changes: int | None
    harmful_changes: int | None
    """Questions whose membership in A > 0, Q < 0, or whose label ΔU < 0, is another one in FP64."""
    state_gap: float | None
    """Largest entry of |H + D − H⁺|."""
    decomposition_residual: float | None
    """Largest |ΔU − (A + ∫(1−s)φ''(s)ds)| in FP64."""
    third_relative_1: Estimate
    third_relative_2: Estimate
    third_relative_3: Estimate
    """Median relative gap of φ''' to central differences at spacings 0.01, 0.005, 0.0025."""
    third_absolute: float | None
    """Largest absolute gap at the smallest spacing."""
    refined_gain: float | None
    refined_scale: float | None
    refined_third: float | None
    refined_curvature: float | None
    """Largest changes from 129 to 257 nodes."""
    negative_everywhere: int | None
    """Questions with φ'' < 0 at every sampled scale."""
    negative_primary: int | None
    """Those among the primary questions A > 0, Q < 0."""
    sampled_third: Estimate
    sampled_curvature: Estimate
    """Primary medians of the largest sampled |φ'''| and −φ''."""
    envelope_ratio: Estimate
    """Primary median of L_D over the largest sampled −φ''."""


PANELS = (
    Panel(
        (
            *IDENTITY,
            Column(("passed", "checks"), "Scalar checks\npassed", (COUNT, COUNT), template="{}/{}"),
            column("scalar_difference", "Q", scientific(3), latex="$Q$", group="Scalar vs stored"),
            column("endpoint_difference", "Endpoint\nreplay", scientific(3)),
            column("endpoint_reread", "Endpoints\nread again", scientific(3)),
            column("slope_difference", "A", scientific(3), latex="$A$", group="FP64 vs stored"),
            column("quadratic_difference", "Q", scientific(3), latex="$Q$", group="FP64 vs stored"),
            column("gain_difference", "ΔU", scientific(3), latex=r"$\Delta U$", group="FP64 vs stored"),
            column("primary_changes", "A>0, Q<0", COUNT, latex=r"$A>0,Q<0$", group="Changed in FP64"),
            column("harmful_changes", "ΔU<0", COUNT, latex=r"$\Delta U<0$", group="Changed in FP64"),
            column("state_gap", "State gap", scientific(3)),
            column("decomposition_residual", "Decomposition\nresidual", scientific(3)),
        ),
        title="(a) Values, slopes and curvatures: largest absolute differences",
    ),
    Panel(
        (
            *IDENTITY,
            column("third_relative_1", "0.01", scientific(3), group="Third derivative, median gap at spacing"),
            column("third_relative_2", "0.005", scientific(3), group="Third derivative, median gap at spacing"),
            column("third_relative_3", "0.0025", scientific(3), group="Third derivative, median gap at spacing"),
            column("refined_gain", "Gain", scientific(3), group="129 to 257 nodes"),
            column("refined_scale", "Scale", fixed(6), group="129 to 257 nodes"),
            column("envelope_ratio", "Envelope\nratio", fixed(4)),
        ),
        title="(b) Third derivatives, refinement and envelope",
    ),
)


def derivative_checks(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[DerivativeRow]:
    """One row per condition with a scalar check or an FP64 path."""
    kept = [updates for updates in records.updates if _checked(updates)]
    notes = notes_on(updates.condition for updates in kept) + notes_on_bounds(kept)
    notes += tuple(dict.fromkeys(_unchecked(u.condition) for u in records.updates if not _checked(u)))
    if not records.updates:
        notes += (no_updates(records),)
    return TableResult(
        study="derivative-checks",
        label="tab:derivative-checks",
        title="Derivative cross-checks",
        caption=(
            "A scalar second derivative along the chord against the stored curvature, the FP64 path against the stored "
            "one, third derivatives against central differences of curvature, and the curvature envelope against the "
            "largest sampled value."
        ),
        rows=tuple(_row(updates, _sweep(records, updates), bootstrap or Bootstrap()) for updates in kept),
        panels=PANELS,
        notes=notes,
    )


def _checked(updates: Updates) -> bool:
    return updates.has_some("scalar_quadratic") or updates.has("fp64_slope", "fp64_quadratic", "fp64_gain")


def _unchecked(condition: Condition) -> str:
    """Why a condition has no line."""
    name = f"{condition.model_title} {condition.set_title}"
    if not Level(condition.level).includes(Level.GRID):
        return f"no derivative checks of {name}: measure with {setting('level', 'grid')}"
    if not condition.scalar_checks:
        others = f"16 by default; {setting('level', 'full')} has others"
        return f"no derivative checks of {name}: measured with scalar_checks=0 ({others})"
    return f"no derivative checks of {name}: none of its first {condition.scalar_checks} questions is measured yet"


def _present(updates: Updates, name: str) -> Floats:
    """The values of a column that has nulls, without them; empty where the run lacks it altogether."""
    if not updates.has_some(name):
        return np.empty(0)
    values = updates.floats(name)
    return values[~np.isnan(values)]


def _largest(updates: Updates, name: str) -> float | None:
    return Maximum(np.abs(_present(updates, name))).value()


def _difference(updates: Updates, name: str) -> float | None:
    if not updates.has(f"fp64_{name}"):
        return None
    return Maximum(np.abs(updates.floats(f"fp64_{name}") - updates.floats(name))).value()


def _changes(updates: Updates) -> tuple[int | None, int | None]:
    """Questions whose primary membership and whose harmful label FP64 changes."""
    if not updates.has("fp64_slope", "fp64_quadratic", "fp64_gain"):
        return None, None
    primary = (updates.floats("fp64_slope") > 0) & (updates.floats("fp64_quadratic") < 0)
    harmful = updates.floats("fp64_gain") < 0
    return int((primary != updates.primary).sum()), int((harmful != (updates.gain < 0)).sum())


def agrees(quadratic: Floats, scalar: Floats) -> Mask:
    """Whether two calculations of Q agree: to 1e-6 absolute or 1e-4 relative (the paper's disjunctive criterion)."""
    gap = np.abs(quadratic - scalar)
    return (gap <= 1e-6) | (gap <= 1e-4 * np.abs(scalar))


def _lists(updates: Updates, name: str, width: int) -> Floats:
    """A list column without the questions that lack it: [questions, width]."""
    if not updates.has_some(name):
        return np.empty((0, width))
    stored = updates.frame[name].drop_nulls()
    return stored.explode().to_numpy().reshape(len(stored), -1)


def _sweep(records: Records, updates: Updates) -> DepthSweep | None:
    return next((sweep for sweep in records.sweeps if sweep.condition.same_set(updates.condition)), None)


def _endpoint_difference(updates: Updates, sweep: DepthSweep | None) -> float | None:
    if sweep is None or len(sweep.ids) != len(updates) or not updates.has("utility_before", "utility_after"):
        return None
    before = updates.condition.transition or 0
    ends = (("utility_before", before), ("utility_after", before + 1))
    return max(
        float(np.abs(updates.floats(name) - sweep.utility[:, sweep.depths.index(depth)]).max()) for name, depth in ends
    )


def _row(updates: Updates, sweep: DepthSweep | None, bootstrap: Bootstrap) -> DerivativeRow:
    scalar = updates.floats("scalar_quadratic")
    checked = ~np.isnan(scalar)
    relative, absolute = (_lists(updates, f"fp64_third_{name}_gap", 3) for name in ("relative", "absolute"))
    third = bootstrap.estimate({index: Quantile(relative[:, index], 0.5) for index in range(3)})
    primary = updates.primary if updates.has("fp64_sampled_curvature", "fp64_sampled_third") else None
    nothing = np.empty(0)
    sampled = nothing if primary is None else updates.floats("fp64_sampled_curvature")[primary]
    extremes = bootstrap.estimate(
        {
            "sampled_curvature": Quantile(sampled, 0.5),
            "sampled_third": Quantile(
                nothing if primary is None else updates.floats("fp64_sampled_third")[primary], 0.5
            ),
        }
    )
    ratio = nothing
    if primary is not None and updates.has("fp64_L_D"):
        curved = sampled > 0
        ratio = updates.floats("fp64_L_D")[primary][curved] / sampled[curved]
    primary_changes, harmful_changes = _changes(updates)
    changes = _lists(updates, "fp64_refined_change", 4)
    gain_change, scale_change, curvature_change, third_change = (Maximum(change).value() for change in changes.T)
    convexity = updates.floats("fp64_sampled_convexity") if updates.has("fp64_sampled_convexity") else None
    return DerivativeRow(
        updates.condition,
        "",
        checks=int(checked.sum()),
        passed=int(agrees(updates.quadratic, scalar)[checked].sum()),
        scalar_difference=Maximum(np.abs(scalar - updates.quadratic)[checked]).value(),
        endpoint_difference=_endpoint_difference(updates, sweep),
        endpoint_reread=_largest(updates, "endpoint_replay"),
        slope_difference=_difference(updates, "slope"),
        quadratic_difference=_difference(updates, "quadratic"),
        gain_difference=_difference(updates, "gain"),
        primary_changes=primary_changes,
        harmful_changes=harmful_changes,
        state_gap=_largest(updates, "fp64_state_gap"),
        decomposition_residual=_largest(updates, "fp64_decomposition_residual"),
        third_relative_1=third[0],
        third_relative_2=third[1],
        third_relative_3=third[2],
        third_absolute=Maximum(absolute[:, -1]).value(),
        refined_gain=gain_change,
        refined_scale=scale_change,
        refined_third=third_change,
        refined_curvature=curvature_change,
        negative_everywhere=None if convexity is None else int((convexity < 0).sum()),
        negative_primary=None if convexity is None else int(((convexity < 0) & updates.primary).sum()),
        envelope_ratio=bootstrap.estimate({"": Quantile(ratio, 0.5)})[""],
        **extremes,
    )
