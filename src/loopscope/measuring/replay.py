"""Measuring a sample of a run again: what `loopscope verify` compares with the records.

One batch of one work unit of every task, chosen by the run itself, is measured from the same sources with the same
settings and in the same layout. Where device, code and libraries are those of the run, every column must agree; where
they are not, the utilities and coefficients must, as far as the arithmetic lets them.
"""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc  # type: ignore[import-untyped]

from loopscope.errors import LoopscopeError, setting
from loopscope.measuring.continued import CIRCUMSTANCES
from loopscope.measuring.data_request import DataRequest
from loopscope.measuring.depth_pass import Trip
from loopscope.measuring.given_rows import given_task
from loopscope.measuring.given_values import limits, rows
from loopscope.measuring.layout import Question, example_columns, plan_batches
from loopscope.measuring.model_request import ModelRequest
from loopscope.measuring.own_answers import own_answers
from loopscope.measuring.plan import ModelFacts, QuestionEncoder, Request, facts_of
from loopscope.measuring.run import Prepared, chat_of, prepare
from loopscope.measuring.settings import BatchPolicy, Prompting, Settings
from loopscope.measuring.transfer import length
from loopscope.models.choices import split_choices
from loopscope.models.in_memory import ModelSpec, borrowed, is_factory
from loopscope.models.initial_state import SEED
from loopscope.models.protocol import LoopedModel
from loopscope.models.tokenizer import Tokenizer, load_tokenizer
from loopscope.models.user_models import must_be_named
from loopscope.store.column_types import Column, Table
from loopscope.store.manifest import Manifest, TaskInfo
from loopscope.store.resume import Difference, differences
from loopscope.store.run import StoredRun
from loopscope.store.run_directory import WorkUnit
from loopscope.store.shards import constants, to_arrow
from loopscope.store.verification import Finding

_CORE = frozenset(
    {
        "utility", "option_scores", "option_logliks", "utility_before", "utility_after", "gain", "slope", "quadratic",
        "grid_gain", "fp64_slope", "fp64_quadratic", "fp64_gain", "fp64_quarter_gain", "log_prob", "entropy",
        "state_norm", "step_norm",
    }
)  # fmt: skip
"""Numbers that follow smoothly from the states; a bracket or a class may jump by a rounding error."""
_JUMPING = frozenset(
    {
        "batch", "batch_width", "outcome", "chosen_option", "scalar_check_passed", "fp64_optimum_kind",
        "fp64_evaluations", "gate_continuing", "exit_depth", "exit_depth_fp64", "continues", "top_id", "lens_ids",
        "rank", "evaluated",
    }
)  # fmt: skip
"""What is not a real number and yet may be another one on another device or in another layout."""
_ROUNDING = {"float64": 1e-9, "float32": 1e-4}
"""How far apart two devices or layouts may be, relative to 1 + |value|, by the coarser of the two arithmetics."""
_COARSE = 5e-2


@dataclass(frozen=True)
class Tolerance:
    """How far apart two measurements may be.

    Attributes:
        same: within this, relative to 1 + |value|, where everything is as it was.
        other: within this where device, code, libraries or layout are not.
        circumstances: whether everything is as it was.
    """

    same: float
    other: float
    circumstances: bool

    @classmethod
    def of(cls, manifest: Manifest, *, same_circumstances: bool) -> Tolerance:
        """What the arithmetic of a run lets one ask for."""
        arithmetic = {manifest.dtypes.states, manifest.dtypes.readout}
        rough = _COARSE if arithmetic & {"bfloat16", "float16"} else max(_ROUNDING[name] for name in arithmetic)
        # Even then another number of threads may add up in another order.
        return cls(min(rough, 1e-6), rough, same_circumstances)

    def relaxed(self) -> Tolerance:
        """The same for another batch layout."""
        return dataclasses.replace(self, circumstances=False)

    def applies_to(self, column: Column) -> bool:
        """Whether a column can be compared at all."""
        if self.circumstances:
            return True
        return column.name in _CORE if column.type.is_float else column.name not in _JUMPING


def compare(table: Table, stored: Any, measured: Any, tolerance: Tolerance) -> list[str]:
    """One line for each column whose cells do not agree; both tables stand in key order."""
    if len(stored) != len(measured):
        return [f"row: {len(measured)} rows instead of {len(stored)}"]
    found = []
    for column in table.columns:
        if not tolerance.applies_to(column):
            continue
        line = _difference(column, stored.column(column.name), measured.column(column.name), tolerance)
        if line is not None:
            found.append(f"{column.name}: {line}")
    return found


def _difference(column: Column, stored: Any, measured: Any, tolerance: Tolerance) -> str | None:
    if stored.equals(measured):
        return None
    if not column.type.is_float:
        old, new = stored.to_pylist(), measured.to_pylist()
        first = next(index for index, pair in enumerate(zip(old, new, strict=True)) if pair[0] != pair[1])
        return f"{new[first]!r} instead of {old[first]!r}"
    if not pc.is_null(stored).equals(pc.is_null(measured)):
        return "other cells are empty"
    old, new = _flat(column, stored), _flat(column, measured)
    if old.shape != new.shape:
        return "lists of another length"
    allowed = tolerance.same if tolerance.circumstances else tolerance.other
    gap = np.abs(new - old) / (1.0 + np.abs(old))
    worst = int(gap.argmax())
    return None if gap[worst] <= allowed else f"{new[worst]!r} instead of {old[worst]!r}"


def _flat(column: Column, values: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    values = values.drop_null()
    if column.type.is_list:
        values = pc.list_flatten(values)
    flat: np.ndarray[Any, np.dtype[np.float64]] = values.to_numpy().astype(np.float64)
    return flat


STRANGE = "not the sources of the run"


def replay(
    run: StoredRun,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    device: str | None = None,
    model: ModelSpec | None = None,
    tokenizer: Any = None,
    gaps: list[float] | None = None,
) -> list[Finding]:
    """Measure a sample of every task again and report what came out otherwise.

    Args:
        run: the run, whose records are sound.
        data_dir: where the benchmarks are; left out, where they were.
        device: where to measure; left out, where the run was measured.
        model: where the model is; left out, where it was. A run of a model in memory needs the object.
        tokenizer: the tokenizer, where the run was given one as an object.
        gaps: takes the largest difference of a utility in each replayed batch.
    """
    try:
        with borrowed(model):
            gaps = [] if gaps is None else gaps
            return list(_replay(run, request_of(run, data_dir, device, model, tokenizer), gaps))
    except LoopscopeError as error:
        return [Finding("replay", str(run.path), f"cannot be measured again: {error}")]


def _replay(run: StoredRun, request: Request, gaps: list[float]) -> Iterator[Finding]:
    sources = Sources.of(run, request)
    if sources.refused:
        yield from (Finding("replay", str(run.path), f"{STRANGE}: {entry}") for entry in sources.refused)
        return
    tolerance = Tolerance.of(run.manifest, same_circumstances=not sources.differences)
    settings = request.settings
    encoder = sources.encoder(spans=settings.spans, share=settings.share_context)
    for unit in _sample(run):
        yield from _replay_unit(run, unit, sources, encoder, tolerance, gaps)


@dataclass(frozen=True)
class Sources:
    """Model, tokenizer and rows of a run, loaded again.

    Attributes:
        differences: what is not as it was.
        refused: those of them that may not differ.
    """

    request: Request
    model: LoopedModel
    facts: ModelFacts
    tokenizer: Tokenizer | None
    prepared: Prepared
    differences: list[Difference]
    refused: list[Difference]

    @classmethod
    def of(cls, run: StoredRun, request: Request) -> Sources:
        """Load what a request of `request_of` names."""
        as_chat = request.data.prompting.apply_chat_template
        if not as_chat:
            loaded = request.data.load()
            request = request.needing(loaded)
        model = request.model.load()
        facts = facts_of(model)
        tokenizer = request.model.load_tokenizer(model)
        if as_chat:
            loaded = request.data.load(chat_of(tokenizer))
        prepared = prepare(request, loaded, facts, tokenizer)
        # The batches are those of the run, whatever this device would have been given.
        tasks = tuple(
            run.manifest.task(info.name, info.split) if task.given else info
            for info, task in zip(prepared.manifest.tasks, loaded, strict=True)
        )
        rebuilt = prepared.manifest.model_copy(update={"batch": run.manifest.batch, "tasks": tasks})
        found = differences(run.manifest, rebuilt)
        held = run.manifest.model.weights
        unknown = ("model.weights.",) if not held else ("model.weights.value ",) if not _has_values(held) else ()
        refused = [entry for entry in found if not entry.field.startswith(CIRCUMSTANCES + unknown)]
        return cls(request, model, facts, tokenizer, prepared, found, refused)

    def check(self) -> None:
        """Refuse other sources than those of the run."""
        if self.refused:
            raise LoopscopeError(f"{STRANGE}: {self.refused[0]}")

    def encoder(self, *, spans: bool, share: bool) -> QuestionEncoder:
        """Rows to questions."""
        return QuestionEncoder(
            self.tokenizer, self.facts.max_positions, self.request.settings.long, spans=spans, share=share
        )


def _has_values(weights: Mapping[str, str]) -> bool:
    """Whether a run says of a model in memory what values it held."""
    return any(name.startswith("value ") for name in weights)


def _replay_unit(
    run: StoredRun,
    unit: WorkUnit,
    sources: Sources,
    encoder: QuestionEncoder,
    tolerance: Tolerance,
    gaps: list[float],
) -> Iterator[Finding]:
    settings, planned = sources.request.settings, sources.prepared.task_of(unit)
    questions = encoder.questions(planned.task, planned.rows[unit.start : unit.stop], unit.start)
    answers = own_answers(sources.model, sources.tokenizer, settings)
    questions = questions if answers is None else answers(questions)
    # The last batch has the shortest questions, so a sample is cheap.
    number, batch = list(enumerate(plan_batches(questions, settings.batch)))[-1]
    tables = {**Trip(sources.model, settings, batch).run(), "examples": example_columns(batch)}
    if settings.transitions:
        tables["questions"]["batch"] = [number] * length(tables["questions"])
    rows = sorted(question.row for question in batch)
    fixed = constants(run.manifest, unit)
    halved = _was_halved(run, unit, batch)
    for table in run.manifest.tables():
        stored = stored_rows(run, unit, table.name, rows)
        measured = to_arrow(table, tables[table.name], fixed)
        if table.name == "depths" and len(stored) == len(measured):
            utilities = (data.column("utility").to_numpy() for data in (stored, measured))
            gaps.append(float(np.abs(np.subtract(*utilities)).max()))
        for difference in compare(table, stored, measured, tolerance.relaxed() if halved else tolerance):
            yield Finding("replay", f"unit {unit.name}", f"{table.name}.{difference}")


def _was_halved(run: StoredRun, unit: WorkUnit, batch: Sequence[Question]) -> bool:
    """Whether the run measured these questions in smaller batches, because memory did not suffice."""
    if not run.manifest.transitions:
        return False
    stored = stored_rows(run, unit, "questions", sorted(question.row for question in batch))
    widths, numbers = set(stored.column("batch_width").to_pylist()), set(stored.column("batch").to_pylist())
    return widths != {max(question.width for question in batch)} or len(numbers) > 1


def stored_rows(run: StoredRun, unit: WorkUnit, table: str, rows: Iterable[int]) -> Any:
    """Some rows of a unit in a table, in key order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    data = run.read_shard(table, unit)
    return data.filter(pc.is_in(data.column("row"), pa.array(list(rows), pa.int32())))


def _sample(run: StoredRun) -> list[WorkUnit]:
    """One unit of every task, the same for the same run."""
    chance = random.Random(run.manifest.digest)
    return [
        chance.choice([unit for unit in run.units if (unit.task, unit.split) == (task.name, task.split)])
        for task in run.manifest.tasks
    ]


def request_of(
    run: StoredRun,
    data_dir: str | os.PathLike[str] | None,
    device: str | None,
    model: ModelSpec | None,
    tokenizer: Any = None,
) -> Request:
    """The call that made the run, from its manifest and, for where its sources were, from its log."""
    manifest = run.manifest
    unnamed = must_be_named(manifest.model.spec) if model is None else None
    if unnamed is not None:
        raise LoopscopeError(unnamed)
    called: Mapping[str, Any] = next((e for e in reversed(run.events) if e.get("event") == "call"), {})
    prompting, _ = Prompting.of_manifest(manifest.settings)
    return Request(
        ModelRequest.of(
            _found(called.get("folder"), manifest.model.spec) if model is None else model,
            device or ("cuda" if _on_gpu(manifest) else "cpu"),
            manifest.dtypes.states,
            revision=called.get("revision") if model is None else None,
            random_weights=manifest.model.random_weights,
            seed=manifest.seeds.get("random_weights", 0),
            tokenizer=_tokenizer(called.get("tokenizer"), tokenizer),
            args=_args(manifest, model),
            initial_state=manifest.settings.get("initial_state"),
            initial_seed=_initial_seed(manifest),
        ),
        DataRequest(
            tuple(
                given_task(run, spec["given"]) if isinstance(spec, dict) else _found(called.get("folder"), spec)
                for spec in called.get("tasks") or map(_spec, manifest.tasks)
            ),
            os.fspath(data_dir) if data_dir is not None else called.get("data_dir"),
            called.get("template"),
            limits(called["limit"] if "limit" in called else {t.name: t.limit for t in manifest.tasks if t.limit}),
            rows(called.get("ids")),
            prompting,
        ),
        _settings(manifest),
    )


def _tokenizer(called: Any, given: Any) -> Any:
    if given is not None:
        return given if isinstance(given, str) else load_tokenizer(given)
    if isinstance(called, dict):
        raise LoopscopeError(
            f"the run was given {called.get('given')} as its tokenizer: name a file of it with {setting('tokenizer')}"
        )
    return called


def _settings(manifest: Manifest) -> Settings:
    batch = manifest.batch
    _, rest = Prompting.of_manifest(manifest.settings)
    return Settings(
        manifest.transitions,
        manifest.depths,
        manifest.level,
        tokens=manifest.tokens,
        paths=manifest.paths,
        batch=BatchPolicy(batch.policy, batch.size, batch.token_budget, batch.padding),  # type: ignore[arg-type]
        unit_size=manifest.unit_size,
        readout_dtype=manifest.dtypes.readout,
        **{name: value for name, value in rest.items() if name not in ("model_args", "initial_state")},
    )


def _initial_seed(manifest: Manifest) -> int | None:
    """Another seed of H_0 than the usual one, which older manifests name for models that draw none."""
    seed = manifest.seeds.get("initial_state")
    return None if seed == SEED else seed


def _args(manifest: Manifest, model: ModelSpec | None) -> Mapping[str, Any]:
    """What made the run's model, unless an object is given that is made already."""
    made = model is not None and not isinstance(model, str | os.PathLike) and not is_factory(model)
    args = manifest.settings.get("model_args")
    return {} if made or not isinstance(args, dict) else args


def _spec(task: TaskInfo) -> str:
    return f"{task.name}:{task.subset or task.split}"


def _found(folder: str | None, spec: str) -> str:
    """A path as the run's own call meant it, from its own folder; any other specification as it is."""
    base, chosen = split_choices(spec)
    if chosen:
        return _found(folder, base) + spec[len(base) :]
    name, equals, path = spec.rpartition("=")
    if folder is None or Path(path).is_absolute() or not (Path(folder) / path).exists():
        return spec
    return f"{name}{equals}{Path(folder) / path}"


def _on_gpu(manifest: Manifest) -> bool:
    return not manifest.device.startswith("cpu")
