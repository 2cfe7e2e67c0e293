"""`ls.control`: policies compared on runs, with the costs of their model, policies of one's own and learned heads."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopscope.control.cost import Costs, known_costs
from loopscope.control.policy import Policy
from loopscope.errors import LoopscopeError, choice, setting, shown, whole
from loopscope.studies.records import Records
from loopscope.studies.registry import Source, open_records, studies_extra
from loopscope.studies.tables.control import ControlRow, Given
from loopscope.studies.tables.control import control as control_table

if TYPE_CHECKING:
    from loopscope.control.cache_rules import CacheRule
    from loopscope.control.generating import PromptRule
    from loopscope.control.heads import ExitHead, ScaleHead
    from loopscope.control.tiers import Tier
    from loopscope.stats import Bootstrap
    from loopscope.store import StoredRun
    from loopscope.studies.figures.style import FigureResult
    from loopscope.studies.result import TableResult
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
    cache: CacheRule = "latest",
    prompt: PromptRule = "policy",
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
        cache: what later tokens read of one that stopped: "latest", "held" or "full"; in generation also "shared".
        prompt: "policy", or "full" where prompts take every loop.

    Raises:
        LoopscopeError: there is no trace, or a policy cannot be followed over one.
    """
    floor = whole("floor", floor, 1, DEEPEST)
    choice("tier", tier, ("offline", "rerun", "generate"))
    choice("cache", cache, ("latest", "shared", "held", "full"))
    choice("prompt", prompt, ("policy", "full"))
    if tier != "offline" and floor > 1:
        raise LoopscopeError(f"{setting('floor', floor)} is for {setting('tier', 'offline')}: leave one of them out")
    for name, value in (("target_cost", target_cost), ("check_cost", check_cost), ("outside_cost", outside_cost)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0):
            raise LoopscopeError(f"{setting(name, value)}: give a number of loops, 0 or more")
    if isinstance(policies, str) or not isinstance(policies, Sequence):
        raise LoopscopeError(f"{setting('policies', policies)}: give a list of policies")
    own = tuple(_policy(given) for given in policies)
    records = open_records(runs)

    def prepare(pair: TracePair) -> Given:
        counted = _counted(pair.sources[1][0])
        costs = Costs(
            counted.outside if outside_cost is None else outside_cost,
            counted.check if check_cost is None else check_cost,
        )
        learned = [policy for policy in own if _is_head(policy)]
        if heads is not None:
            learned += _heads(Path(heads), pair)
        plain = tuple(policy for policy in own if not _is_head(policy))
        if not learned:
            return Given(pair, costs, plain)
        return Given(_annotated(pair, learned), costs, (*plain, *learned))

    table: TableResult[Any]
    if tier == "offline":
        table = control_table(records, bootstrap, prepare=prepare, target=target_cost, floor=floor)
    else:
        from loopscope.control_tiers import acted_table

        table = acted_table(records, tier, bootstrap, prepare=prepare, target=target_cost, cache=cache, prompt=prompt)
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


def _counted(run: StoredRun) -> Costs:
    """The costs of a run's model: known ones, or counted where the model can be loaded; else free."""
    known = known_costs(run.manifest.model.name)
    if known is not None:
        return known
    from loopscope.control.run_states import costs_of_run

    try:
        return costs_of_run(run)
    except LoopscopeError:
        return Costs()


def _heads(folder: Path, pair: TracePair) -> list[Any]:
    from loopscope.control.heads import load_head, save_head
    from loopscope.control.train import train_exit_head, train_scale_head

    stem = f"{pair.condition.model.rsplit('/', 1)[-1]}-{pair.condition.task}"
    found = sorted(folder.glob(f"{stem}-*.safetensors"))
    if found:
        return [load_head(path) for path in found]
    gathered, depth = _gathered(pair, train=True), _update(pair)
    made: list[ExitHead | ScaleHead] = [train_exit_head(gathered, first=1)]
    save_head(made[0], folder / f"{stem}-exit.safetensors")
    if depth is not None:
        made.append(train_scale_head(gathered, depth))
        save_head(made[1], folder / f"{stem}-scale.safetensors")
    return list(made)


def _update(pair: TracePair) -> int | None:
    depths = range(2, min(pair.train.loops, pair.test.loops) + 1)
    known = [depth for depth in depths if pair.train.has_scales(depth) and pair.test.has_scales(depth)]
    wanted = (pair.trained_depth or 0) + 1
    return wanted if wanted in known else known[0] if known else None


def _gathered(pair: TracePair, *, train: bool) -> Any:
    from loopscope.control.run_states import gathered_of

    if pair.note is not None:
        raise LoopscopeError("heads are trained on a train split: measure one with trace=True and give both runs")
    run, condition = pair.sources[0 if train else 1]
    trace = pair.train if train else pair.test
    depth = _update(pair)
    scales = () if depth is None else (depth,)
    return _gather(run, condition.task, condition.split, trace.loops, scales, gathered_of)


@cache
def _gather(run: StoredRun, task: str, split: str, loops: int, scales: tuple[int, ...], gathered_of: Any) -> Any:
    return gathered_of(run, task, split, loops, scales)


def _annotated(pair: TracePair, heads: Sequence[Any]) -> TracePair:
    """The traces with the numbers of heads in columns of their own."""
    from loopscope.control.heads import annotate

    def more(trace: Any, *, train: bool) -> Any:
        seen = annotate(_gathered(pair, train=train), *heads)
        new = {name: column for name, column in seen.columns.items() if name in ("exit_head", "scale_head")}
        return dataclasses.replace(trace, columns={**trace.columns, **new})

    return dataclasses.replace(pair, train=more(pair.train, train=True), test=more(pair.test, train=False))
