"""What is computed in two ways: derivatives (Appendices E.2, E.5), the exit gate (E.8), sets of questions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from loopscope.errors import setting
from loopscope.stats import Quantile
from loopscope.store.schema import ends_of
from loopscope.studies.conditions import Condition
from loopscope.studies.declare import IDENTITY, MODEL, TASK, Column, Row, Values, panel, table, words
from loopscope.studies.paper import data_hashes
from loopscope.studies.populations import Population, Selection, groups_of
from loopscope.studies.records import Floats, Mask, Records, Tokens, Updates, largest, matrix, of_set

NO_SPLITS = "no task has two splits here: name runs of a train and of a test split"
FP64 = ("fp64_slope", "fp64_quadratic", "fp64_gain")


CHECKED = groups_of(
    lambda records: [each for each in records.updates if each.has_some("scalar_quadratic") or each.has(*FP64)],
    lambda records: records.nothing(f"no scalar check or FP64 path: measure with {setting('level', 'full')}"),
    "grid",
)


def _scientific(head: str, name: str, group: str = "") -> Column:
    return Column(head, f"{{{name}:.3e}}", group=group)


@table(
    "derivative-checks",
    "Derivative cross-checks",
    CHECKED,
    panel(
        "(a) Values, slopes and curvatures: largest absolute differences",
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
    panel(
        "(b) Third derivatives, refinement and envelope",
        *IDENTITY,
        *(
            _scientific(spacing, f"third_relative_{place}", "Third derivative, median gap at spacing")
            for place, spacing in enumerate(("0.01", "0.005", "0.0025"), 1)
        ),
        _scientific("Gain", "refined_gain", "129 to 257 nodes"),
        Column("Scale", "{refined_scale:.6f}", group="129 to 257 nodes"),
        Column("Envelope\nratio", "{envelope_ratio:.4f}"),
    ),
    paper="app:exp-protocol",
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
    changes = zip(("gain", "scale", "curvature", "third"), _lists(updates, "fp64_refined_change", 4).T, strict=True)
    values = {
        "checks": checked.sum(),
        "passed": agrees(updates.quadratic, scalar)[checked].sum(),
        "scalar_difference": largest((scalar - updates.quadratic)[checked]),
        "endpoint_difference": _endpoint_difference(updates),
        "endpoint_reread": largest(updates.values("endpoint_replay")),
        **{f"{name}_difference": _difference(updates, name) for name in ("slope", "quadratic", "gain")},
        **dict.fromkeys(("primary_changes", "harmful_changes", "negative_everywhere", "negative_primary")),
        "state_gap": largest(updates.values("fp64_state_gap")),
        "decomposition_residual": largest(updates.values("fp64_decomposition_residual")),
        **{f"third_relative_{place + 1}": Quantile(relative[:, place], 0.5) for place in range(3)},
        "third_absolute": largest(absolute[:, -1]),
        **{f"refined_{name}": largest(change) for name, change in changes},
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


def _difference(updates: Updates, name: str) -> float | None:
    """Largest |FP64 − stored|."""
    return largest(updates.floats(f"fp64_{name}") - updates.floats(name)) if updates.has(f"fp64_{name}") else None


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


@table(
    "shared-questions",
    "Questions that two splits share",
    Population(lambda records: Selection((records,), ()), "quick"),
    MODEL,
    TASK,
    Column("N", "{questions}"),
    Column("Of the\npublished split", "{published}"),
    *(words("Other set", "{other}"), Column("Shared", "{shared}")),
    paper="app:exp-protocol",
    notes=lambda rows, records: () if rows else (records.nothing(NO_SPLITS),),
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
    pairs: dict[tuple[str, str], tuple[Condition, Condition]] = {}
    for one, other in permutations(prompts, 2):
        if one.task == other.task and one.split != other.split:
            pairs.setdefault((one.evaluation_set, other.evaluation_set), (one, other))
    for one, other in pairs.values():
        ours = prompts[one]
        same = one.info and one.info.data_sha256 == data_hashes().get((one.task, one.split))
        counts = {"questions": len(ours), "published": len(ours) if same else 0}
        shared = int(ours.is_in(prompts[other].implode()).sum())
        yield Row(one, other.evaluation_set, {**counts, "other": other.set_title, "shared": shared})


def _no_gate(records: Records) -> str:
    how = f"measure with {setting('tokens', True)} and a model that has an exit gate"
    reason = f"these runs hold no gate at single tokens: {how}"
    return records.nothing(reason) if records.updates else records.no_updates()


@table(
    "gate-agreement",
    "Exit gate: coverage and agreement with FP64",
    groups_of(lambda records: [g for g in records.tokens() if g.gate is not None], _no_gate, "--tokens"),
    *(*IDENTITY, Column("Continuing", "{continuing}/{positions}")),
    Column("Coverage (%)", "{coverage:.2%}"),
    Column("FP64 exits\nalike", "{agreeing}/{positions}"),
    Column("Exit depths", "{earliest}-{latest}"),
    paper="app:native-continue",
)
def gate_agreement(group: Tokens) -> Values:
    """Reference positions at which the stored policy takes the update, and positions at which the gate rebuilt in FP64
    exits at the same depth.
    """
    assert group.gate is not None
    gate, depths = group.gate, group.gate["exit_depth"]
    continuing = int(gate["continues"].sum())
    return {
        "positions": gate.height,
        "continuing": continuing,
        "coverage": continuing / gate.height if gate.height else None,
        "agreeing": int((depths == gate["exit_depth_fp64"]).sum()),
        "earliest": depths.min(),
        "latest": depths.max(),
    }
