"""Derivative cross-checks (Appendices E.2, "Execution and differentiation", and E.5), and whose questions these are."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from loopscope.errors import setting
from loopscope.stats import Maximum, Quantile
from loopscope.store import Level
from loopscope.store.schema import ends_of
from loopscope.studies.conditions import Condition
from loopscope.studies.declare import IDENTITY, MODEL, TASK, Column, Panel, Row, Values, table, words
from loopscope.studies.paper import data_hashes
from loopscope.studies.populations import Population, Selection, name_of, no_updates, notes_on, notes_on_bounds
from loopscope.studies.records import Floats, Mask, Records, Updates, matrix, of_set

FP64 = ("fp64_slope", "fp64_quadratic", "fp64_gain")


def _checked(records: Records) -> Selection:
    """Conditions with a scalar check or an FP64 path."""
    kept = tuple(updates for updates in records.updates if updates.has_some("scalar_quadratic") or updates.has(*FP64))
    notes = [*notes_on(updates.condition for updates in kept), *notes_on_bounds(kept)]
    notes += dict.fromkeys(_unchecked(updates.condition) for updates in records.updates if updates not in kept)
    return Selection(kept, tuple(notes) if records.updates else (*notes, no_updates(records)))


def _unchecked(condition: Condition) -> str:
    """Why a condition has no line."""
    name = f"no derivative checks of {name_of(condition)}"
    checks = condition.manifest and condition.manifest.settings.get("scalar_checks")
    if not Level(condition.level).includes(Level.GRID):
        return f"{name}: measure with {setting('level', 'grid')}"
    if not checks:
        return f"{name}: measured with scalar_checks=0 (16 by default; {setting('level', 'full')} has others)"
    return f"{name}: none of its first {checks} questions is measured yet"


def _scientific(head: str, name: str, group: str = "") -> Column:
    return Column(head, f"{{{name}:.3e}}", group=group)


@table(
    "derivative-checks",
    "Derivative cross-checks",
    paper="app:exp-protocol",
    summary="derivatives computed in two ways",
    over=Population(_checked, "grid"),
    columns=(
        Panel(
            (
                *(*IDENTITY, Column("Scalar checks\npassed", "{passed}/{checks}")),
                _scientific("Q", "scalar_difference", "Scalar vs stored"),
                _scientific("Ends and\nsweep", "endpoint_difference"),
                _scientific("Ends\nread again", "endpoint_reread"),
                *(
                    _scientific(head, f"{name}_difference", "FP64 vs stored")
                    for head, name in (("A", "slope"), ("Q", "quadratic"), ("ΔU", "gain"))
                ),
                Column("A>0, Q<0", "{primary_changes}", group="Changed in FP64"),
                Column("ΔU<0", "{harmful_changes}", group="Changed in FP64"),
                _scientific("State gap", "state_gap"),
                _scientific("Decomposition\nresidual", "decomposition_residual"),
            ),
            "(a) Values, slopes and curvatures: largest absolute differences",
        ),
        Panel(
            (
                *IDENTITY,
                *(
                    _scientific(spacing, f"third_relative_{place}", "Third derivative, median gap at spacing")
                    for place, spacing in enumerate(("0.01", "0.005", "0.0025"), 1)
                ),
                _scientific("Gain", "refined_gain", "129 to 257 nodes"),
                Column("Scale", "{refined_scale:.6f}", group="129 to 257 nodes"),
                Column("Envelope\nratio", "{envelope_ratio:.4f}"),
            ),
            "(b) Third derivatives, refinement and envelope",
        ),
    ),
)
def derivative_checks(updates: Updates) -> Values:
    """A scalar second derivative along the chord against the stored curvature, the FP64 path against the stored one,
    third derivatives against central differences of curvature, and the curvature envelope against the largest sampled
    value.
    """
    scalar = updates.floats("scalar_quadratic")
    checked = ~np.isnan(scalar)
    inside = updates.where(updates.primary)
    curvature, third, bound = (inside.values(f"fp64_{name}") for name in ("sampled_curvature", "sampled_third", "L_D"))
    curved = curvature > 0
    # The median over primary questions of L_D over the largest sampled −φ''.
    ratio = bound[curved] / curvature[curved] if bound.size == curvature.size else bound[:0]
    relative, absolute = (_lists(updates, f"fp64_third_{name}_gap", 3) for name in ("relative", "absolute"))
    changes = _lists(updates, "fp64_refined_change", 4).T
    values = {
        "checks": checked.sum(),
        "passed": agrees(updates.quadratic, scalar)[checked].sum(),
        "scalar_difference": _largest((scalar - updates.quadratic)[checked]),
        "endpoint_difference": _endpoint_difference(updates),
        "endpoint_reread": _largest(updates.values("endpoint_replay")),
        **{f"{name}_difference": _difference(updates, name) for name in ("slope", "quadratic", "gain")},
        **dict.fromkeys(("primary_changes", "harmful_changes")),
        "state_gap": _largest(updates.values("fp64_state_gap")),
        "decomposition_residual": _largest(updates.values("fp64_decomposition_residual")),
        **{f"third_relative_{place + 1}": Quantile(relative[:, place], 0.5) for place in range(3)},
        "third_absolute": _largest(absolute[:, -1]),
        **{
            f"refined_{name}": _largest(change)
            for name, change in zip(("gain", "scale", "curvature", "third"), changes, strict=True)
        },
        **dict.fromkeys(("negative_everywhere", "negative_primary")),
        "sampled_third": Quantile(third, 0.5),
        "sampled_curvature": Quantile(curvature, 0.5),
        "envelope_ratio": Quantile(ratio, 0.5),
    }
    if updates.has(*FP64):
        primary = (updates.floats("fp64_slope") > 0) & (updates.floats("fp64_quadratic") < 0)
        values["primary_changes"] = (primary != updates.primary).sum()
        values["harmful_changes"] = ((updates.floats("fp64_gain") < 0) != updates.harmful).sum()
    if updates.has("fp64_sampled_convexity"):
        negative = updates.floats("fp64_sampled_convexity") < 0  # φ'' < 0 at every sampled scale
        values |= {"negative_everywhere": negative.sum(), "negative_primary": (negative & updates.primary).sum()}
    return values


def _largest(values: Floats) -> float | None:
    return Maximum(np.abs(values)).value()


def _difference(updates: Updates, name: str) -> float | None:
    """Largest |FP64 − stored|."""
    return _largest(updates.floats(f"fp64_{name}") - updates.floats(name)) if updates.has(f"fp64_{name}") else None


def agrees(quadratic: Floats, scalar: Floats) -> Mask:
    """Whether two calculations of Q agree: to 1e-6 absolute or 1e-4 relative (the paper's disjunctive criterion)."""
    gap = np.abs(quadratic - scalar)
    return np.asarray((gap <= 1e-6) | (gap <= 1e-4 * np.abs(scalar)))


def _lists(updates: Updates, name: str, width: int) -> Floats:
    """A list column without the questions that lack it: [questions, width]."""
    return matrix(updates.frame[name].drop_nulls()) if updates.has_some(name) else np.empty((0, width))


def _endpoint_difference(updates: Updates) -> float | None:
    """Largest |U of an end of the update − U of that depth in the sweep|: two copies of one pass."""
    sweep = updates.sweep
    if sweep is None or len(sweep.ids) != len(updates) or not updates.has("utility_before", "utility_after"):
        return None
    ends = zip(("utility_before", "utility_after"), ends_of(updates.condition.transition or 0), strict=True)
    places = [(name, sweep.depths.index(depth)) for name, depth in ends]
    return max(float(np.abs(updates.floats(name) - sweep.utility[:, place]).max()) for name, place in places)


def _splits(records: Records) -> Selection:
    """All evaluation sets at once, where a task has two splits."""
    splits = {(condition.task, condition.split) for _, condition in records.conditions()}
    if len(splits) > len({task for task, _ in splits}):
        return Selection((records,), ())
    return Selection((), (records.nothing("no task has two splits here: name runs of a train and of a test split"),))


@table(
    "shared-questions",
    "Questions that two splits share",
    paper="app:exp-protocol",
    summary="questions that evaluation sets of one task share",
    over=Population(_splits, "quick"),
    columns=(
        *(MODEL, TASK, Column("N", "{questions}"), Column("Of the\npublished split", "{published}")),
        *(words("Other set", "{other}"), Column("Shared", "{shared}")),
    ),
)
def shared_questions(records: Records) -> Iterator[Row]:
    """How many questions of an evaluation set come from a split whose rows have the published hash, and how many of
    their prompts another split of the same task holds, too.
    """
    prompts = {
        condition: run.examples.filter(of_set(condition))["prompt"]
        for run, condition in records.conditions()
        if condition.info
    }
    pairs: set[tuple[str, str]] = set()
    for condition, ours in prompts.items():
        for other, theirs in prompts.items():
            pair = (condition.evaluation_set, other.evaluation_set)
            if condition.task == other.task and condition.split != other.split and pair not in pairs:
                pairs.add(pair)
                assert condition.info is not None
                published = condition.info.data_sha256 == data_hashes().get((condition.task, condition.split))
                counts = {"questions": len(ours), "published": len(ours) if published else 0}
                shared = int(ours.is_in(theirs.implode()).sum())
                yield Row(condition, other.evaluation_set, {**counts, "other": other.set_title, "shared": shared})
