"""`ls.control`: policies compared on runs, with the costs of their model, policies of one's own and learned heads."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopscope.control.comparison import Comparison, update_of
from loopscope.control.offline import Costs, known_costs
from loopscope.control.policy import Policy
from loopscope.control.rules import anchored_steps, fixed_scale, substeps
from loopscope.errors import LoopscopeError, choice, optional_text, setting, shown, whole
from loopscope.measuring.given_values import task_list
from loopscope.measuring.rerun import Named
from loopscope.stats import Bootstrap, Estimate, Mean
from loopscope.studies.records import Records
from loopscope.studies.registry import Source, open_records, studies_extra
from loopscope.studies.result import MODEL, TASK, Panel, Row, TableResult, column, fixed, label, percent
from loopscope.studies.tables.control import ControlRow, Given, Prepare, compared
from loopscope.studies.tables.control import control as control_table

if TYPE_CHECKING:
    import polars as pl

    from loopscope.control.rerun import Tier
    from loopscope.measuring.measure_call import Tasks
    from loopscope.models.in_memory import ModelSpec
    from loopscope.store import StoredRun
    from loopscope.studies.figures.style import FigureResult
    from loopscope.studies.traces import TracePair

DEEPEST = 1_000_000
"""The largest floor that may be asked for."""


@dataclass(frozen=True)
class Control:
    """The comparison of policies on some runs: `print` shows the table."""

    table: TableResult[Any]
    records: Records

    def figure(self) -> FigureResult:
        """Utility over cost, with the ceilings."""
        if any(not isinstance(row, ControlRow) for row in self.table.rows):
            raise LoopscopeError(f"the figure is drawn for {setting('tier', 'offline')}")
        with studies_extra():
            from loopscope.studies.figures.control import draw
        return draw(self.table, self.records)

    def __str__(self) -> str:
        return str(self.table)

    def _repr_html_(self) -> str:
        return self.table.to_html()


def control(
    runs: Source | Sequence[Source],
    *,
    policies: Sequence[Policy | str | os.PathLike[str]] = (),
    heads: str | os.PathLike[str] | None = None,
    target_cost: float | None = None,
    floor: int = 1,
    check_cost: float | None = None,
    outside_cost: float | None = None,
    bootstrap: Bootstrap | None = None,
    tier: Tier = "offline",
    model: ModelSpec | None = None,
    tasks: Tasks = (),
    template: str | os.PathLike[str] | None = None,
) -> Control:
    """Compare exit rules and scales at equal cost on runs that were measured with `trace=True`.

    Thresholds, the best depth and the best scale are chosen on the questions of a train split and tested on those of
    the other runs of the same model and task. Where there is one split alone, its questions are divided.

    Args:
        runs: run directories or opened runs: the train split's and others.
        policies: besides the published rules: policies of your own, "mine.py:NAME", or files of heads.
        heads: a folder of learned heads: those in it are used; where it has none, an exit head and a scale head are
            trained on the train split and kept there. Both take a pass of the model.
        target_cost: mean cost in loops to which rules are fitted; that of the best fixed depth by default.
        floor: no rule stops before this loop.
        check_cost: weights of a readout over those of a loop; counted in the model by default.
        outside_cost: weights outside the loop over those of a loop; likewise.
        bootstrap: resamples, seed and level.
        tier: "offline" follows policies over the trace; "rerun" has the fitted policies act on the model,
            teacher-forced; "generate" has them write answers, which are scored. Both load model and questions again.
        model: the runs' model, where it is code, is in memory or has moved: costs, heads and acting need it.
        tasks: the runs' tasks in files, which are followed only where they are named; heads and acting need them.
        template: the runs' template file, likewise.

    Raises:
        LoopscopeError: there is no trace, or a policy cannot be followed over one.
    """
    floor = whole("floor", floor, 1, DEEPEST)
    choice("tier", tier, ("offline", "rerun", "generate"))
    if tier != "offline" and floor > 1:
        raise LoopscopeError(f"{setting('floor', floor)} is for {setting('tier', 'offline')}: leave one of them out")
    for name, value in (("target_cost", target_cost), ("check_cost", check_cost), ("outside_cost", outside_cost)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0):
            raise LoopscopeError(f"{setting(name, value)}: give a number of loops, 0 or more")
    if isinstance(policies, str) or not isinstance(policies, Sequence):
        raise LoopscopeError(f"{setting('policies', policies)}: give a list of policies")
    own = tuple(_policy(given) for given in policies)
    records = open_records(runs)
    named = Named(model, task_list(tasks) if tasks else (), optional_text("template", template))

    def prepare(pair: TracePair) -> Given:
        costs = _costs(pair.sources[1][0], named, outside_cost, check_cost)
        learned = [policy for policy in own if _is_head(policy)]
        plain = tuple(policy for policy in own if not _is_head(policy))
        if heads is None and not learned:
            return Given(pair, costs, plain)
        pair, learned = _learned(pair, learned, heads, named)
        return Given(pair, costs, (*plain, *learned))

    table: TableResult[Any]
    if tier == "offline":
        table = control_table(records, bootstrap, prepare=prepare, target=target_cost, floor=floor)
    else:
        table = _acted_table(records, tier, bootstrap, prepare=prepare, target=target_cost, named=named)
    if not table.rows:
        raise LoopscopeError(f"control: {table.notes[-1]}")
    return Control(table, records)


def _policy(given: Any) -> Policy:
    if isinstance(given, str | os.PathLike):
        spec = os.fspath(given)
        if spec.endswith(".safetensors"):
            from loopscope.control.heads import load_head

            return load_head(spec)
        from loopscope.models.user_models import load_code, names_code

        if not names_code(spec):
            raise LoopscopeError(f"there is no policy {spec!r}: give mine.py:NAME or a head's .safetensors")
        given = load_code(spec)()
    if not isinstance(given, Policy):
        raise LoopscopeError(
            f"{shown(given)} is no policy: it needs name, earliest, signals, start(rows) and decide(seen, memory)"
        )
    return given


def _is_head(policy: Policy) -> bool:
    return bool({"exit_head", "scale_head"} & set(policy.signals))


def _costs(run: StoredRun, named: Named, outside: float | None, check: float | None) -> Costs:
    """The costs that the user gives; the others are known of published models, and counted in any other.

    Raises:
        LoopscopeError: they can be neither.
    """
    if outside is not None and check is not None:
        return Costs(outside, check)
    counted = known_costs(run.manifest.model.name)
    if counted is None:
        from loopscope.control.rerun import costs_of_run

        try:
            counted = costs_of_run(run, named)
        except LoopscopeError as error:
            given = f"{setting('outside_cost', 0.1)} and {setting('check_cost', 0.1)}"
            raise LoopscopeError(f"the costs of {run.path} cannot be counted: {error}; or give {given}") from None
    return Costs(counted.outside if outside is None else outside, counted.check if check is None else check)


def _learned(
    pair: TracePair, given: list[Any], folder: str | os.PathLike[str] | None, named: Named
) -> tuple[TracePair, list[Any]]:
    """The traces with the numbers of heads in columns of their own, and the heads, trained where there are none."""
    from loopscope.control.heads import annotate, gathered_of, load_head, save_head
    from loopscope.control.train import train_exit_head, train_scale_head

    if pair.note is not None:
        raise LoopscopeError("heads are trained on a train split: measure one with trace=True and give both runs")
    train, test = (
        gathered_of(run, named, condition.task, condition.split, trace)
        for (run, condition), trace in zip(pair.sources, (pair.train, pair.test), strict=True)
    )
    if folder is not None:
        stem = f"{pair.condition.model.rsplit('/', 1)[-1]}-{pair.condition.task}"
        found = [load_head(path) for path in sorted(Path(folder).glob(f"{stem}-*.safetensors"))]
        if not found:
            found, depth = [train_exit_head(train)], update_of(pair.train, pair.test, (pair.trained_depth or 0) + 1)
            if depth is not None:
                found.append(train_scale_head(train, depth))
            for head, kind in zip(found, ("exit", "scale"), strict=False):
                save_head(head, Path(folder) / f"{stem}-{kind}.safetensors")
        given = [*given, *found]
    return dataclasses.replace(pair, train=annotate(train, *given), test=annotate(test, *given)), given


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


def _acted_table(
    records: Records, tier: Tier, bootstrap: Bootstrap | None, *, prepare: Prepare, target: float | None, named: Named
) -> TableResult[ActedRow]:
    """Every policy that `loopscope control` fits, and steps that only a model can take, carried out."""
    from loopscope.control.rerun import acted

    rows: list[ActedRow] = []
    notes: list[str] = []
    for pair, found, said in compared(records, prepare, target):
        run, condition = pair.sources[1]
        policies = list(_policies(pair, found))
        frame = acted(
            run, condition.task, condition.split, policies, tier, loops=min(pair.train.loops, pair.test.loops),
            ids=pair.test.ids, costs=found.costs, named=named,
        )  # fmt: skip
        rows += _rows(pair, found, frame, tier, bootstrap or Bootstrap())
        notes += said
    return TableResult(
        study="control",
        label=f"tab:control-{tier}",
        title="Policies acting on the model" if tier == "rerun" else "Policies generating answers",
        caption=(
            "The policies of the comparison over the trace, frozen, and steps that need the model, carried out on the "
            "test questions; later tokens read the last keys and values of one that stopped. Differences are paired by "
            "question."
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
        *(fixed_scale(0.5, first=step), fixed_scale(0.75, first=max(step - 1, 1))),
        *(substeps(2), anchored_steps(2)),
    ]
    for policy in [*(entry.policy for entry in found.tested), *more]:
        if policy is not None and policy.name not in seen:
            seen.add(policy.name)
            yield policy


def _rows(
    pair: TracePair, found: Comparison, frame: pl.DataFrame, tier: Tier, bootstrap: Bootstrap
) -> Iterator[ActedRow]:
    traced = {entry.name: entry.result.utility_Q for entry in found.tested}
    by_policy = {str(name): rows.sort("row") for (name,), rows in frame.group_by("policy", maintain_order=True)}
    of_interest = "accuracy" if tier == "generate" else "utility"
    best_Q = by_policy[found.best.name][of_interest].to_numpy()
    statistics: dict[tuple[str, str], Mean] = {}
    for name, rows in by_policy.items():
        values_Q = rows[of_interest].to_numpy()
        statistics[name, "accuracy"] = Mean(rows["accuracy"].to_numpy())
        statistics[name, of_interest] = Mean(values_Q)
        statistics[name, "best"] = Mean(values_Q - best_Q)
        if tier == "rerun" and name in traced:
            statistics[name, "trace"] = Mean(values_Q - traced[name])
    estimates = bootstrap.estimate(statistics)
    nothing = Estimate(None, len(best_Q))
    for name, rows in by_policy.items():
        yield ActedRow(
            pair.condition,
            name,
            loops=float(rows["loops"].to_numpy().mean()),
            cost=float(rows["cost"].to_numpy().mean()),
            utility=estimates.get((name, "utility"), nothing),
            accuracy=estimates[name, "accuracy"],
            over_best=estimates[name, "best"],
            over_trace=estimates.get((name, "trace"), nothing),
        )
