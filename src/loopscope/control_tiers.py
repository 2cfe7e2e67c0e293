"""`loopscope control --tier rerun|generate`: the fitted policies again, acting on the model over the test questions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from loopscope.control.cache_rules import CacheRule
from loopscope.control.comparison import Comparison
from loopscope.control.cost import Costs
from loopscope.control.generating import PromptRule
from loopscope.control.offline import Result
from loopscope.control.policy import Policy
from loopscope.control.scales import AnchoredSteps, FixedScale, Substeps
from loopscope.control.tiers import Tier, acted, results
from loopscope.stats import Bootstrap, Estimate, Mean
from loopscope.studies.records import Records
from loopscope.studies.result import MODEL, TASK, Panel, Row, TableResult, column, fixed, label, percent
from loopscope.studies.tables.control import Given, Prepare, compared
from loopscope.studies.traces import TracePair


@dataclass(frozen=True)
class ActedRow(Row):
    """One policy acting on one model and task; the key is its name."""

    loops: float
    cost: float
    utility: Estimate
    """None in generation."""
    accuracy: Estimate
    over_best: Estimate
    """Utility, in generation accuracy, minus that of the best fixed depth, acting as well."""
    over_trace: Estimate
    """Utility minus that of the same policy over the trace; none for those that need the model."""


_SHARED = (
    *(MODEL, TASK, label("key", "Policy")),
    *(column("loops", "Loops", fixed(2)), column("cost", "Cost", fixed(2))),
)
_PANELS = {
    "rerun": Panel(
        (
            *_SHARED,
            column("utility", "Utility", fixed(4)),
            column("accuracy", "Accuracy", percent(1)),
            column("over_best", "Over best depth, 1e-3\n[95% CI]", fixed(2, 1e3, sign=True, interval=True)),
            column("over_trace", "Over the trace, 1e-3\n[95% CI]", fixed(2, 1e3, sign=True, interval=True)),
        )
    ),
    "generate": Panel(
        (
            *_SHARED,
            column("accuracy", "Right answers (%)\n[95% CI]", percent(1, interval=True)),
            column("over_best", "Over best depth (%)\n[95% CI]", percent(1, sign=True, interval=True)),
        )
    ),
}


def acted_table(
    records: Records,
    tier: Tier,
    bootstrap: Bootstrap | None,
    *,
    prepare: Prepare,
    target: float | None,
    cache: CacheRule,
    prompt: PromptRule,
) -> TableResult[ActedRow]:
    """Every policy that `loopscope control` fits, and steps that only a model can take, carried out."""
    rows: list[ActedRow] = []
    notes: list[str] = []
    given: dict[int, Given] = {}

    def remembered(pair: TracePair) -> Given:
        made = prepare(pair)
        given[id(made.pair)] = made
        return made

    for pair, found, said in compared(records, remembered, target):
        run, condition = pair.sources[1]
        costs = given[id(pair)].costs or Costs()
        policies = list(_policies(pair, found))
        frame = acted(
            run, condition.task, condition.split, policies, tier, loops=min(pair.train.loops, pair.test.loops),
            ids=pair.test.ids, cache=cache, prompt=prompt, costs=costs,
        )  # fmt: skip
        rows += _rows(pair, found, results(frame), tier, bootstrap or Bootstrap())
        notes += said
    title = "Policies acting on the model" if tier == "rerun" else "Policies generating answers"
    return TableResult(
        study="control",
        label=f"tab:control-{tier}",
        title=title,
        caption=(
            "The policies of the comparison over the trace, frozen, and steps that need the model, carried out on the "
            f"test questions with the cache rule {cache!r}; differences are paired by question."
        ),
        rows=tuple(rows),
        panels=(_PANELS[tier],),
        notes=tuple(dict.fromkeys(notes)),
    )


def _policies(pair: TracePair, found: Comparison) -> Iterator[Policy]:
    """The tested ones, and what no trace can say: compounding scales, substeps, anchored steps."""
    seen = set()
    step = (pair.trained_depth or 1) + 1
    more: list[Policy] = [
        *(FixedScale(0.5, first=step), FixedScale(0.75, first=max(step - 1, 1))),
        *(Substeps(2), AnchoredSteps(2)),
    ]
    for policy in [*(entry.policy for entry in found.tested), *more]:
        if policy is not None and policy.name not in seen:
            seen.add(policy.name)
            yield policy


def _rows(
    pair: TracePair, found: Comparison, by_policy: Mapping[str, Result], tier: Tier, bootstrap: Bootstrap
) -> Iterator[ActedRow]:
    traced = {entry.name: entry.result for entry in found.tested}
    best = by_policy[found.best.name]
    statistics: dict[tuple[str, str], Mean] = {}
    for name, result in by_policy.items():
        statistics[name, "accuracy"] = Mean(result.accuracy_Q)
        if tier == "generate":
            statistics[name, "best"] = Mean(result.accuracy_Q - best.accuracy_Q)
            continue
        statistics[name, "utility"] = Mean(result.utility_Q)
        statistics[name, "best"] = Mean(result.utility_Q - best.utility_Q)
        if name in traced:
            statistics[name, "trace"] = Mean(result.utility_Q - traced[name].utility_Q)
    estimates = bootstrap.estimate(statistics)
    nothing = Estimate(None, len(best.accuracy_Q))
    for name, result in by_policy.items():
        yield ActedRow(
            pair.condition,
            name,
            loops=float(result.loops_Q.mean()),
            cost=float(result.cost_Q.mean()),
            utility=estimates.get((name, "utility"), nothing),
            accuracy=estimates[name, "accuracy"],
            over_best=estimates[name, "best"],
            over_trace=estimates.get((name, "trace"), nothing),
        )
