"""A run measured again (`loopscope verify`): its sources loaded anew, and a sample or everything compared.

A run directory may come from anybody. Nothing in it that names code, a template or a task file is followed: what of
these a run was measured with is followed only where the user names it again (`Named`).

A sample goes through `measure` into a scratch directory with the sources and settings of the run. Texts and tokens must
be equal, utilities and coefficients as far as the arithmetic lets them: the questions are in other batches, and device,
code and libraries may be others.

Everything is compared bit for bit, as the paper's appendices on transitions and on tokens do: every table, and for each
batch

- the **prefix**: the states of the first T loops, T being the exit gate's budget or the trained depth, as a pass that
  goes on beyond them has them, against one that ends there;
- the **selected states**: those that the exit policy reads out, picked from the whole trajectory, against a policy that
  decides after every loop from what it has seen so far; without a gate, the states at T.

Shapes: R sequences, S positions, D hidden width.
"""

from __future__ import annotations

import math
import os
import random
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import polars as pl
import torch
from torch import Tensor

from loopscope.errors import LoopscopeError, optional_text, setting, shown
from loopscope.measuring.batching import collate, plan_batches
from loopscope.measuring.config import BatchPolicy, MeasureConfig, canonical, task_list
from loopscope.measuring.run import Prepared, prepare, run_config, tasks_first
from loopscope.measuring.worker import LocalEngine
from loopscope.models.batch import Packing
from loopscope.models.families.decoder import SEED
from loopscope.models.in_memory import ModelSpec, borrowed, is_factory
from loopscope.models.protocol import ExitGate, LoopedModel, exit_gate_of, state_at_exit
from loopscope.models.registry import OBJECT, parse_name
from loopscope.models.tokenizer import Tokenizer, load_tokenizer
from loopscope.models.walk import Walk
from loopscope.store.manifest import Difference, Manifest, differences
from loopscope.store.run import StoredRun
from loopscope.store.verification import Comparison, Finding, Replayed
from loopscope.tasks.load import is_task_file
from loopscope.tasks.source_rows import is_data_file

UTILITIES = "utilities at the stored depths"
OTHER_SOURCES = "not the sources of the run"
_CIRCUMSTANCES = (
    *("loopscope_version", "code_sha256", "device", "libraries"),
    *("model.spec", "model.name", "model.revision"),
)
"""What may differ between two runs whose numbers are compared; then rounding may differ, too."""
_QUESTIONS = 4
"""Questions of each task in a sample, where batches are not larger."""
_EXACT = ("prompt", "reference", "options", "correct_option", "option", "token", "position", "token_id")
_NUMBERS = (
    "utility", "option_scores", "option_logliks", "utility_before", "utility_after", "gain", "slope", "quadratic",
    "grid_gain", "fp64_slope", "fp64_quadratic", "fp64_gain", "fp64_quarter_gain", "log_prob", "entropy", "state_norm",
    "step_norm",
)  # fmt: skip
"""What follows smoothly from the states; a bracket, a class or a rank may jump by a rounding error."""
_KEYS = ("task", "split", "row", "transition", "depth", "option", "token")
_TOLERANCES = {"float64": 1e-9, "float32": 1e-4}
_COARSE = 5e-2
"""In 16 bits; relative to 1 + |value|."""
_OF_ROWS = (".rows", ".ids_sha256", ".skipped")
"""What the manifest says of a task's rows; of a sample they are compared themselves."""


class NotNamedError(LoopscopeError):
    """A run was measured with something that is followed only where the user names it."""


@dataclass(frozen=True)
class Named:
    """What the user names in a command that computes a run's states again.

    Attributes:
        model: the model; needed where the run was measured with code or with a model in memory.
        tasks: tasks in files or in Python, as `measure` takes them, each in place of the run's task of the same name.
        template: the template file, where the run was given one.
        tokenizer: the tokenizer; needed where the run was given an object.
        data_dir: where the benchmarks are, if they have moved.
        device: where to compute; the run's own kind of device where left out.
    """

    model: ModelSpec | None = None
    tasks: Any = ()
    template: str | os.PathLike[str] | None = None
    tokenizer: Any = None
    data_dir: str | os.PathLike[str] | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", task_list(self.tasks))
        object.__setattr__(self, "template", optional_text("template", self.template))


def config_of(run: StoredRun, named: Named) -> MeasureConfig:
    """The call that made the run, from its manifest and, for where its sources were, from its log.

    Raises:
        NotNamedError: the run was measured with code, a template or a task file that `named` does not name.
    """
    manifest, model = run.manifest, named.model
    called: Mapping[str, Any] = next((e for e in reversed(run.events) if e.get("event") == "call"), {})
    fewshot_split = manifest.settings.get("fewshot_split")
    if isinstance(fewshot_split, str) and is_data_file(fewshot_split):
        raise NotNamedError(
            "its few-shot examples come from a data file, which is not followed from a run directory: measure it again"
        )
    if called.get("template") is not None and named.template is None:
        raise NotNamedError(
            f"it was measured with the template {shown(called['template'])}, which is followed only where you name it:"
            f" {setting('template')}"
        )
    unknown = [name for name in manifest.settings if name not in MeasureConfig.model_fields]
    if unknown:
        raise LoopscopeError(f"it was measured with {unknown[0]}, which this version of loopscope does not know")
    tokenizer = called.get("tokenizer") if named.tokenizer is None else named.tokenizer
    if isinstance(tokenizer, dict):
        raise LoopscopeError(
            f"the run was given {shown(str(tokenizer.get('given')))} as its tokenizer: name a file of it with"
            f" {setting('tokenizer')}"
        )
    batch, seed = manifest.batch, manifest.seeds.get("initial_state")
    args: Any = manifest.settings.get("model_args")
    if not isinstance(args, dict):  # older manifests do not hold the arguments
        drawn = {"random_weights": True, "seed": manifest.seeds.get("random_weights", 0)}
        args = drawn if manifest.model.random_weights else {}
    if model is not None and not isinstance(model, str | os.PathLike) and not is_factory(model):
        args = {}  # what made the run's model, and this one is made already
    same = {name: getattr(manifest, name) for name in ("transitions", "depths", "level", "tokens", "paths")}
    given: dict[str, Any] = {
        **manifest.settings,
        **same,
        "interpolate": bool(manifest.settings.get("interpolate")),
        "model": _model(called, manifest) if model is None else model,
        "model_args": args,
        "device": named.device or ("cpu" if manifest.device.startswith("cpu") else "cuda"),
        "dtype": manifest.dtypes.states,
        "readout_dtype": manifest.dtypes.readout,
        "tokenizer": tokenizer if isinstance(tokenizer, str | None) else load_tokenizer(tokenizer),
        # Older manifests name the usual seed for models that draw no state.
        "initial_seed": None if seed == SEED else seed,
        "allow_code": model is not None,
        "tasks": _tasks(run, called, named),
        "data_dir": called.get("data_dir") if named.data_dir is None else named.data_dir,
        "template": named.template,
        "limit": called["limit"] if "limit" in called else {t.name: t.limit for t in manifest.tasks if t.limit},
        "ids": called.get("ids"),
        "batch": BatchPolicy(batch.policy, batch.size, batch.token_budget, batch.padding),  # type: ignore[arg-type]
        "unit_size": manifest.unit_size,
        "progress": "none",
    }
    return MeasureConfig(**given)


def why_not_named(run: StoredRun, named: Named) -> str | None:
    """What a run needs to be named before it can be computed again, in one line; None where nothing is missing."""
    try:
        config_of(run, named)
    except NotNamedError as error:
        return str(error)
    except LoopscopeError:  # whatever else is wrong is reported by what computes it
        pass
    return None


def _model(called: Mapping[str, Any], manifest: Manifest) -> str:
    """The specification, a folder as the run's own call meant it; code must be named."""
    spec, folder, revision = manifest.model.spec, called.get("folder"), called.get("revision")
    if spec.startswith(OBJECT):
        raise NotNamedError(
            f"it was measured with a model in memory ({shown(spec.removeprefix(OBJECT))}):"
            " run.verify(model=model) takes it"
        )
    if folder is not None and not Path(spec).is_absolute() and (Path(folder) / spec).is_dir():
        spec = str(Path(folder) / spec)
    if parse_name(spec).is_code:
        raise NotNamedError(
            f"it was measured with code ({shown(spec)}), which runs only where you name it: {setting('model')}"
        )
    return spec if revision is None or spec.endswith(f"@{revision}") else f"{spec}@{revision}"


def _tasks(run: StoredRun, called: Mapping[str, Any], named: Named) -> tuple[Any, ...]:
    by_name = {canonical(task): task for task in named.tasks}
    found: list[Any] = []
    for spec in called.get("tasks") or [f"{task.name}:{task.subset or task.split}" for task in run.manifest.tasks]:
        name = spec["given"] if isinstance(spec, dict) else canonical(spec)
        if name not in by_name and isinstance(spec, dict):
            raise NotNamedError(f"its task {shown(name)} was given in Python: run.verify(tasks=[task]) takes it")
        if name not in by_name and is_task_file(spec):
            raise NotNamedError(
                f"its task {shown(name)} comes from a file, which is followed only where you name it:"
                f" {setting('tasks', spec)}"
            )
        found.append(by_name.pop(name, spec))
    if by_name:
        there = ", ".join(task.name for task in run.manifest.tasks)
        raise LoopscopeError(f"{setting('tasks')} names {shown(next(iter(by_name)))}: the run has {there}")
    return tuple(found)


@dataclass(frozen=True)
class Sources:
    """Model, tokenizer and questions of a run, loaded again; `differences` says what is not as it was."""

    config: MeasureConfig
    model: LoopedModel
    tokenizer: Tokenizer | None
    prepared: Prepared
    differences: list[Difference]

    @classmethod
    def of(cls, run: StoredRun, named: Named) -> Sources:
        """Load what a run was measured with; other sources than those of the run are refused."""
        config, loaded = tasks_first(config_of(run, named))
        engine = LocalEngine(config)
        prepared = prepare(config, loaded, engine.facts, engine.tokenizer)
        # The batches are those of the run, whatever this device would have been given.
        found = differences(run.manifest, prepared.manifest.model_copy(update={"batch": run.manifest.batch}))
        _refuse(found, run.manifest)
        return cls(config, engine.model, engine.tokenizer, prepared, found)


def _refuse(found: Iterable[Difference], manifest: Manifest, *more: str) -> None:
    """Refuse other sources: only circumstances may differ, and what a run does not know of its model in memory."""
    weights, may_differ = manifest.model.weights, [*_CIRCUMSTANCES, *more]
    if not any(name.startswith("value ") for name in weights):
        may_differ.append("model.weights.value " if weights else "model.weights.")
    for entry in found:
        if not entry.field.startswith(tuple(may_differ)):
            raise LoopscopeError(f"{OTHER_SOURCES}: {entry}")


def measure_again(run: StoredRun, named: Named = Named(), *, everything: bool = False) -> Replayed:  # noqa: B008
    """Measure a sample of a sound run again; or everything, compared bit for bit."""
    try:
        with borrowed(named.model), tempfile.TemporaryDirectory() as scratch:
            return (_everything if everything else _sample)(run, named, scratch)
    except LoopscopeError as error:
        reason = str(error) if str(error).startswith(OTHER_SOURCES) else f"cannot be measured again: {error}"
        return Replayed((Finding("replay", str(run.path), reason),))


def _sample(run: StoredRun, named: Named, scratch: str) -> Replayed:
    """Neighbouring questions of every task, the same for the same run; whole batches where these have a fixed size."""
    chance, size = random.Random(run.manifest.digest), run.manifest.batch.size or _QUESTIONS
    size *= -(-_QUESTIONS // size)
    samples = {}
    for task in run.manifest.tasks:
        examples = run.examples.filter(pl.col("task") == task.name, pl.col("split") == task.split).sort("row")
        samples[task.name, task.split] = examples[(start := chance.randrange(0, len(examples), size)) : start + size]
    rows = {key: frozenset(frame["source_row"]) for key, frame in samples.items()}
    config = config_of(run, named).model_copy(update={"sample": rows})

    def check(wanted: Manifest) -> None:
        found = (each for each in differences(run.manifest, wanted) if not each.field.endswith(_OF_ROWS))
        _refuse(found, run.manifest, "batch.")

    chosen = pl.concat(samples.values()).select("task", "split", "row")
    again = StoredRun(run_config(config, scratch, check=check))
    dtypes = run.manifest.dtypes
    tolerance = max(_TOLERANCES.get(dtype, _COARSE) for dtype in (dtypes.states, dtypes.readout))
    utilities, findings = Tally(UTILITIES), list[Finding]()
    for where, gap in _gaps(run, again, chosen):
        name = where.partition(".")[2]
        if gap.differing and (name in _EXACT or (name in _NUMBERS and gap.relative > tolerance)):
            how = "other values" if gap.largest is None else f"a difference of {gap.largest:.3g}"
            findings.append(Finding("replay", where, how))
        if where == "depths.utility":
            utilities.add(gap, where)
    return Replayed(tuple(findings), (utilities.comparison,))


def _gaps(run: StoredRun, again: StoredRun, chosen: pl.DataFrame | None = None) -> Iterator[tuple[str, Gap]]:
    """How every column of two runs differs, by `table.column`; the first of them cut to some questions."""
    for table in run.manifest.tables():
        lazy = StoredRun.scan(run, table.name)  # with the stored codes, where a `Run` has names of outcomes
        lazy = lazy if chosen is None else lazy.join(chosen.lazy(), ["task", "split", "row"], "semi")
        keys = [name for name in _KEYS if name in table.names]
        stored, measured = lazy.collect().sort(keys), again.read(table.name).sort(keys)
        for name in table.names:
            yield f"{table.name}.{name}", Gap.of(stored[name], measured[name])


@torch.no_grad()
def _everything(run: StoredRun, named: Named, scratch: str) -> Replayed:
    sources = Sources.of(run, named)
    config, model, gate = sources.config, sources.model, exit_gate_of(sources.model)
    loops = model.trained_depth if gate is None else gate.budget
    further = max(config.depths[-1], loops + 1)
    prefix = Tally(f"the first {loops} loops, alone and on the way to {further}", "batches")
    chosen = "the states that the exit gate selects" if gate else f"the states at depth {loops}"
    selects, utilities = Tally(chosen, "batches"), Tally(UTILITIES)
    for unit, questions in sources.prepared.given(run.units):
        for number, batch in enumerate(plan_batches(questions, config.batch)):
            where, packing = f"unit {unit.name}, batch {number}", collate(batch, config.batch).to(model.device)
            states, alone = (walked(model, packing, loops, last) for last in (further, loops))
            prefix.add(Gap.of_states(states, alone), where)
            pair = states[-1], alone[-1]
            if gate is not None:
                limit = gate.threshold if config.exit_threshold is None else config.exit_threshold
                pair = selected(gate, limit, states), acted(gate, limit, alone)
            selects.add(Gap.of_states(pair[:1], pair[1:]), where)
    again = StoredRun(run_config(config, scratch))
    tables = {table.name: Tally(f"the table {table.name}") for table in run.manifest.tables()}
    for where, gap in _gaps(run, again):
        tables[where.partition(".")[0]].add(gap, where)
        if where == "depths.utility":
            utilities.add(gap, where)
    comparisons = tuple(tally.comparison for tally in (prefix, selects, utilities, *tables.values()))
    other = "; ".join(map(str, sources.differences[:3]))
    why = f"; not as it was: {other}" if other else ""
    findings = tuple(Finding("replay", each.first or "", f"{each}{why}") for each in comparisons if each.differing)
    return Replayed(findings, comparisons, whole=True)


class Gap(NamedTuple):
    """How what should be the same bits differs.

    Attributes:
        compared: how many pairs.
        differing: how many of them are not the same.
        largest: the largest difference; None where shapes or empty cells differ.
        relative: the largest |difference| / (1 + |value|).
    """

    compared: int
    differing: int
    largest: float | None = 0.0
    relative: float = math.inf

    @classmethod
    def of(cls, old: pl.Series, new: pl.Series) -> Gap:
        """Of a column of a table, list elements one by one."""
        alike = old.is_null().equals(new.is_null())
        if old.dtype == pl.List:
            old, new = (each.drop_nulls().explode() for each in (old, new))
        count = max(len(old), len(new))
        if not alike or len(old) != len(new) or not old.is_null().equals(new.is_null()):
            return cls(count, count, None)
        if not old.dtype.is_float():
            return cls(count, count - int((old == new).sum()) - old.null_count())
        one, other = (each.drop_nulls().to_numpy() for each in (old, new))
        bits = np.int64 if one.dtype.itemsize == 8 else np.int32
        differing = int(np.count_nonzero(one.view(bits) != other.view(bits)))
        if not differing:
            return cls(count, 0, 0.0, 0.0)
        gaps = np.abs(other.astype(np.float64) - one)
        return cls(count, differing, float(gaps.max()), float((gaps / (1.0 + np.abs(one))).max()))

    @classmethod
    def of_states(cls, old: Sequence[Tensor], new: Sequence[Tensor]) -> Gap:
        """Of the states of one batch, which counts once."""
        pairs = [(one.contiguous(), other.contiguous()) for one, other in zip(old, new, strict=True)]
        same = all(
            torch.equal(one.view(-1).view(torch.uint8), other.view(-1).view(torch.uint8)) for one, other in pairs
        )
        return cls(1, int(not same), max(float((other.double() - one.double()).abs().max()) for one, other in pairs))


class Tally:
    """What was compared so far, and how many pairs are not the same bits."""

    def __init__(self, what: str, of: Literal["batches", "values"] = "values") -> None:
        self.comparison = Comparison(what=what, of=of, compared=0, differing=0, largest=0.0)

    def add(self, gap: Gap, where: str) -> None:
        """More pairs, and where they are."""
        old = self.comparison
        known = None if gap.largest is None or old.largest is None else max(old.largest, gap.largest)
        counts = {"compared": old.compared + gap.compared, "differing": old.differing + gap.differing}
        first = old.first or (where if gap.differing else None)
        self.comparison = old.model_copy(update={**counts, "largest": known, "first": first})


def walked(model: LoopedModel, packing: Packing, loops: int, further: int) -> list[Tensor]:
    """The states of the first loops, one sequence to a row, looked at after the walk has gone further."""
    walk = Walk.of(model, packing.batch)
    states = [walk.advance() for _ in range(loops)]
    walk.to(further)
    return [packing.separate(state) for state in states]


def selected(gate: ExitGate, threshold: float, states: Sequence[Tensor]) -> Tensor:
    """The states that the policy reads out, once the whole trajectory is there."""
    compared = gate.compared([gate.logits(state, None) for state in states])
    return state_at_exit(states, gate.exit_depth(compared, threshold))


def acted(gate: ExitGate, threshold: float, states: Sequence[Tensor]) -> Tensor:
    """The same by a policy that decides after every loop, without the later ones."""
    seen: list[Tensor] = []
    exit_RSD, left_RS = states[-1].clone(), torch.ones(states[0].shape[:2], dtype=torch.bool, device=states[0].device)
    for state in states[:-1]:
        seen.append(gate.logits(state, None))
        # What follows decides nothing here: the last entry stands for it.
        compared = gate.compared([*seen, seen[-1]])[..., len(seen) - 1]
        stops = left_RS & (compared >= threshold if gate.rule == "cdf" else compared > threshold)
        exit_RSD = torch.where(stops.unsqueeze(-1), state, exit_RSD)
        left_RS = left_RS & ~stops
    return exit_RSD
