"""Single tokens: their finite-step failures, and the exit gate (Appendix E.8).

Utility is the log probability of one reference token; in an option task those are the tokens of the right option. All
estimates are token-weighted; intervals resample questions, keeping their tokens together, and recompute every ratio.
"""

from __future__ import annotations

import numpy as np

from loopscope.errors import setting
from loopscope.path import Outcome, classify, exceeds_margin
from loopscope.stats import Clusters
from loopscope.studies.declare import IDENTITY, Column, Panel, Values, table
from loopscope.studies.populations import Population, Selection, groups_of, name_of, no_updates, notes_on
from loopscope.studies.records import Records, Tokens


def _continuing(records: Records) -> Selection:
    """Every transition with continuing tokens; transitions that no reference token takes are named."""
    groups = list(records.tokens())
    exited: dict[str, list[str]] = {}
    for group in groups:
        if not group.frame.height:
            exited.setdefault(name_of(group.condition), []).append(group.condition.update)
    notes = notes_on(group.condition for group in groups) + tuple(
        f"{name}: the exit policy takes no reference token through {', '.join(updates)}, so these have no row"
        for name, updates in exited.items()
    )
    if not groups:
        notes += (records.nothing(f"no run holds token rows: measure with {setting('tokens', True)}"),)
    return Selection(tuple(group for group in groups if group.frame.height), notes)


@table(
    "tokens",
    "Finite-step failures in recurrent updates of single tokens",
    paper="tab:native-continue",
    summary="token-level failures and recovery, clustered intervals",
    over=Population(_continuing, "--tokens"),
    columns=(
        Panel(
            (
                *(*IDENTITY, Column("Positions", "{positions}")),
                Column("Finite-step failures (%)", "{failures} ({failure_rate:.2%})"),
                Column("Quarter recovered (%)", "{recovered_quarter} ({quarter_rate:.2%})"),
                Column("Quadratic recovered (%)", "{recovered_quadratic} ({quadratic_rate:.2%})"),
            ),
            "(a) Failure counts and recovery",
        ),
        Panel(
            (
                *IDENTITY,
                *(Column(name.title(), f"{{{name}:.3f}}", per=1e-3) for name in ("full", "quarter", "quadratic")),
                Column("Quadratic − full\n[95% CI]", "{over_full:.3f}", per=1e-3, ci=True),
                Column("Quadratic − quarter\n[95% CI]", "{over_quarter:.3f}", per=1e-3, ci=True),
            ),
            "(b) Utility over all continuing prediction positions",
        ),
    ),
)
def tokens(group: Tokens) -> Values:
    """(a) Failure rates use all continuing reference prediction positions (in option tasks those of the right option);
    recovery rates use the original failures. (b) Mean immediate gains and paired advantages are token-weighted
    reference log-probability increments, in units of 0.001. Paired 95% intervals resample questions, retaining their
    tokens together.
    """
    slope, gain, quarter, quadratic = map(group.floats, ("slope", "gain", "quarter_gain", "quadratic_gain"))
    failed = np.asarray(classify(slope, gain) == Outcome.FINITE_STEP_FAILURE)
    clusters = Clusters.of(group.frame["row"].to_numpy())
    return {
        "questions": clusters.count,
        "positions": group.frame.height,
        "stored": group.stored,
        "failures": failed.sum(),
        "failure_rate": clusters.mean(failed),
        "recovered_quarter": (failed & (quarter > 0)).sum(),
        "quarter_rate": clusters.ratio(failed & (quarter > 0), failed),
        "recovered_quadratic": (failed & (quadratic > 0)).sum(),
        "quadratic_rate": clusters.ratio(failed & (quadratic > 0), failed),
        "full": clusters.mean(gain),
        "quarter": clusters.mean(quarter),
        "quadratic": clusters.mean(quadratic),
        "over_full": clusters.mean(quadratic - gain),
        "over_quarter": clusters.mean(quadratic - quarter),
        "beyond_margin": exceeds_margin(slope, gain).sum(),
    }


def _no_gate(records: Records) -> str:
    how = f"measure with {setting('tokens', True)} and a model that has an exit gate"
    reason = f"these runs hold no gate at single tokens: {how}"
    return records.nothing(reason) if records.updates else no_updates(records)


@table(
    "gate-agreement",
    "Exit gate: coverage and agreement with FP64",
    paper="app:native-continue",
    summary="the exit gate's coverage, and FP64's exits",
    over=groups_of(lambda records: [g for g in records.tokens() if g.gate is not None], _no_gate, "--tokens"),
    columns=(
        *(*IDENTITY, Column("Continuing", "{continuing}/{positions}")),
        Column("Coverage (%)", "{coverage:.2%}"),
        Column("FP64 exits\nalike", "{agreeing}/{positions}"),
        Column("Exit depths", "{earliest}-{latest}"),
    ),
)
def gate_agreement(group: Tokens) -> Values:
    """Reference positions at which the stored policy takes the update, and positions at which the gate rebuilt in FP64
    exits at the same depth.
    """
    assert group.gate is not None
    gate, depths = group.gate, group.gate["exit_depth"].to_numpy()
    continuing = int(gate["continues"].sum())
    return {
        "positions": gate.height,
        "continuing": continuing,
        "coverage": continuing / gate.height if gate.height else None,
        "agreeing": int((gate["exit_depth"] == gate["exit_depth_fp64"]).sum()),
        "earliest": int(depths.min()),
        "latest": int(depths.max()),
    }
