"""`ls.control`: policies compared on runs, over their traces or acting on their model."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from loopscope.control.act import Questions, act, costs_of, measure_lines
from loopscope.control.comparison import Comparison, Tested, update_of
from loopscope.control.offline import Costs, known_costs, score
from loopscope.control.policies import FixedScale, Policy, Taps
from loopscope.errors import LoopscopeError, choice, setting, shown, text, user_code
from loopscope.measuring.progress import Progress
from loopscope.measuring.verify import Named, Sources, config_of
from loopscope.measuring.worker import load_configured_model
from loopscope.models.in_memory import borrowed
from loopscope.models.registry import load_code, names_code
from loopscope.stats import Bootstrap
from loopscope.store.schema import ends_of
from loopscope.studies import FIGURES, Source, open_records
from loopscope.studies.declare import TableResult
from loopscope.studies.records import Records
from loopscope.studies.topics.control import TracePair, control_tables

if TYPE_CHECKING:
    from loopscope.api import Tasks
    from loopscope.models.in_memory import ModelSpec
    from loopscope.store import StoredRun
    from loopscope.studies.figures import FigureResult

Tier = Literal["trace", "readouts", "acting"]
OMEGAS = np.linspace(-1, 1, 41)
"""Where lines of logits are measured."""


@dataclass(frozen=True)
class Control:
    """The comparison of policies on some runs: `print` shows its tables.

    Attributes:
        table: policies at equal cost.
        scales: the fitted scale of every update and its controls; without rows where no line was measured.
    """

    table: TableResult
    scales: TableResult
    records: Records

    def figure(self, name: Literal["control", "fitted-scale"] = "control") -> FigureResult:
        """Utility over cost, with the ceilings; or the fitted scales."""
        return FIGURES[name].of(self.table if name == "control" else self.scales, self.records)

    def __str__(self) -> str:
        return "\n".join(str(table) for table in (self.table, self.scales) if table.rows)

    def _repr_markdown_(self) -> str:
        return "\n".join(table.to_markdown() for table in (self.table, self.scales) if table.rows)


def control(
    runs: Source | Sequence[Source],
    *,
    policies: Sequence[Policy | str | os.PathLike[str]] = (),
    heads: str | os.PathLike[str] | None = None,
    target_cost: float | None = None,
    check_cost: float | None = None,
    outside_cost: float | None = None,
    bootstrap: Bootstrap | None = None,
    tier: Tier = "trace",
    model: ModelSpec | None = None,
    tasks: Tasks = (),
    template: str | os.PathLike[str] | None = None,
) -> Control:
    """Compare exit rules, scales and scaled readouts at equal cost on runs that were measured with `trace=True`.

    Thresholds, the best depth and scales are chosen on the questions of a train split and tested on those of the other
    runs of the same model and task. Where there is one split alone, its questions are divided.

    Args:
        runs: run directories or opened runs: the train split's and others.
        policies: besides the published rules: policies of your own, or "mine.py:NAME".
        heads: a folder of learned heads: those in it are used; an exit head or a scale head that is missing is trained
            on the train split and kept there, which takes a pass of the model.
        target_cost: mean cost in loops to which rules are fitted; that of the best fixed depth by default.
        check_cost: weights of a readout over those of a loop; counted in the model by default.
        outside_cost: weights outside the loop over those of a loop; likewise.
        bootstrap: resamples, seed and level.
        tier: "trace" follows policies over the trace, without the model; "readouts" fits scaled readouts, too, whose
            logits take a pass of the model; "acting" then has every policy act on the model, teacher-forced.
        model: the runs' model, where it is code, is in memory or has moved.
        tasks: the runs' tasks in files, which are followed only where they are named.
        template: the runs' template file, likewise.

    Raises:
        LoopscopeError: there is no trace, or a policy cannot be followed over one.
    """
    choice("tier", tier, get_args(Tier))
    for name, value in (("target_cost", target_cost), ("check_cost", check_cost), ("outside_cost", outside_cost)):
        if not isinstance(value, int | float | None) or not 0 <= (value or 0) < math.inf:
            raise LoopscopeError(f"{setting(name, value)}: give a number of loops, 0 or more")
    own = [_policy(given) for given in ([policies] if isinstance(policies, str) else policies)]
    if heads is not None and os.path.lexists(text("heads", heads)) and not os.path.isdir(heads):
        raise LoopscopeError(f"{setting('heads', os.fspath(heads))} is not a folder: give one for the learned heads")
    records = open_records(runs)
    with_model = _WithModel(Named(model, tasks, template))

    def prepare(pair: TracePair) -> TracePair:
        costs, known = with_model.costs(pair.sources[1][0], outside_cost, check_cost), own
        if heads is not None:
            pair, learned = with_model.learned(pair, Path(heads))
            known = own + learned
        if tier != "trace":
            pair = with_model.lines(pair)
        return replace(pair, costs=costs, policies=tuple(known))

    acting = with_model.acted if tier == "acting" else None
    table, scales = control_tables(records, bootstrap, prepare=prepare, target=target_cost, acting=acting)
    if not table.rows:
        raise LoopscopeError(f"control: {table.notes[-1]}")
    return Control(table, scales, records)


def _policy(given: Any) -> Policy:
    if isinstance(given, str | os.PathLike):
        spec = os.fspath(given)
        if not names_code(spec):
            raise LoopscopeError(f"there is no policy {spec!r}: give mine.py:NAME")
        given = load_code(spec)
    if isinstance(given, type):
        with user_code(f"making the policy {given.__name__}, which is made without arguments,", always=True):
            given = given()
    if not isinstance(given, Policy):
        raise LoopscopeError(f"{shown(given)} is not a policy: derive its class from loopscope.control.Policy")
    return given


class _WithModel:
    """What takes the model of a run and its questions, which are loaded when they are first needed."""

    def __init__(self, named: Named) -> None:
        self._named = named
        # The model and the questions of a run, which must be those that it recorded.
        self.sources: Callable[[StoredRun], Sources] = cache(lambda run: Sources.of(run, named))

    def costs(self, run: StoredRun, outside: float | None, check: float | None) -> Costs:
        """The costs that the user gives; the others are known of published models, and counted in any other.

        Raises:
            LoopscopeError: they can be neither.
        """
        if outside is None or check is None:
            counted = known_costs(run.manifest.model.name)
            if counted is None:
                with borrowed(self._named.model):
                    counted = costs_of(load_configured_model(config_of(run, self._named)))
            outside = counted.outside if outside is None else outside
            check = counted.check if check is None else check
        return Costs(outside, check)

    def both(self, pair: TracePair) -> Iterator[tuple[Any, Questions, Any]]:
        """The model, the encoded questions and the trace of the train and the test split."""
        for (run, condition), trace in zip(pair.sources, (pair.train, pair.test), strict=True):
            sources, ids = self.sources(run), set(trace.ids)
            planned = next(
                one for one in sources.prepared.tasks
                if (one.task.name, one.task.split) == (condition.task, condition.split)
            )  # fmt: skip
            task = replace(
                planned.task, rows=tuple(question.text for question in planned.questions if question.text.id in ids)
            )
            yield sources.model, Questions.of(task.encode(sources.tokenizer)), trace

    def lines(self, pair: TracePair) -> TracePair:
        """The traces with the log probabilities along scaled readouts of every update, and of every measured chord."""
        loops = min(pair.train.loops, pair.test.loops)
        chords = [ends_of(transition) for run, _ in pair.sources for transition in run.manifest.transitions]
        updates = {(k, depth) for k, depth in chords if k >= 1 and depth <= loops}
        updates |= {(depth - 1, depth) for depth in range(2, loops + 1)}
        if not updates:
            return pair
        traces = []
        for (model, questions, trace), part in zip(self.both(pair), ("train", "test"), strict=True):
            title = f"{pair.condition.model}: scaled readouts, {part}"
            with Progress("auto", title, len(questions.sequences), 0, "sequences") as progress:
                lines = measure_lines(model, questions, updates, OMEGAS, progress.count)
            traces.append(replace(trace, lines=lines))
        return replace(pair, train=traces[0], test=traces[1])

    def learned(self, pair: TracePair, folder: Path) -> tuple[TracePair, list[Policy]]:
        """The traces with the numbers of heads in columns, and the heads, trained where they are missing."""
        from loopscope.control.heads import annotate, gather, load_head, save_head, train_exit_head, train_scale_head

        if pair.note is not None:
            raise LoopscopeError("heads are trained on a train split: measure one with trace=True and give both runs")
        train, test = (gather(*parts) for parts in self.both(pair))
        depth = update_of(pair.train, pair.test, pair.trained_depth)
        found = []
        for kind in ("exit", "scale") if depth is not None else ("exit",):
            stem = f"{pair.condition.model.rsplit('/', 1)[-1]}-{pair.condition.task}"
            path = folder / f"{stem}-{kind}.safetensors"
            if not path.exists():
                save_head(train_exit_head(train) if kind == "exit" else train_scale_head(train, depth or 0), path)
            found.append(load_head(path))
        return replace(pair, train=annotate(train, *found), test=annotate(test, *found)), [*found]

    def acted(self, pair: TracePair, found: Comparison) -> Comparison:
        """The policies of a comparison, and those that only a model can follow, carried out on the test questions."""
        _, (model, questions, trace) = self.both(pair)
        loops, step = min(pair.train.loops, trace.loops), (pair.trained_depth or 1) + 1
        asked = [(entry.policy, entry.kind, {"trace": entry.result.utility_Q}) for entry in found.tested]
        more = (FixedScale(0.5, step), FixedScale(0.75, max(step - 1, 1)), Taps())
        asked = [each for each in asked if each[0] is not None] + [(policy, "scale", {}) for policy in more]
        tokens, tested = sum(len(sequence.token_ids) for _, sequence in questions.sequences), []
        with Progress("auto", f"{pair.condition.model}: acting", len(asked), 0, "policies") as progress:
            for policy, kind, others in asked:
                assert policy is not None
                result = score(act(model, questions, policy, loops), questions, found.costs)
                tested.append(Tested(policy.name, kind, policy, result, {**others, "line": found.line(result)}))
                progress.count(1, tokens)
        best = next(entry for entry in tested if entry.name == found.best.name)
        return replace(found, tested=tuple(tested), best=best)
