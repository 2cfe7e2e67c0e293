"""`loopscope measure`: one pass over a model and its tasks, into a run directory; the same call again resumes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from loopscope._errors import LoopscopeError
from loopscope.measure.engines import Engine, LocalEngine, MeasuredUnit
from loopscope.measure.facts import ModelFacts
from loopscope.measure.parts import part
from loopscope.measure.prepare import PlannedTask, QuestionEncoder, build_manifest, check_sharing
from loopscope.measure.progress import Style, progress
from loopscope.measure.request import DataRequest, Ids, ModelRequest, Request
from loopscope.measure.settings import BatchPolicy, Limits, LongPolicy, Settings
from loopscope.measure.threads import OneBehind
from loopscope.store.levels import Level
from loopscope.store.manifest import Manifest
from loopscope.store.run import Run
from loopscope.store.units import WorkUnit
from loopscope.store.writer import RunWriter, open_or_create
from loopscope.tasks.loaded import LoadedTask

Notify = Callable[[str], None]


def measure(
    model: str,
    tasks: Sequence[str],
    *,
    output: str | os.PathLike[str],
    transitions: Iterable[int] = (),
    depths: Iterable[int] = (),
    level: Level | str = Level.GRID,
    tokens: bool = False,
    paths: bool = False,
    limit: Limits = None,
    ids: Ids = None,
    template: str | os.PathLike[str] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    batch_size: str | int = "auto",
    device: str = "auto",
    dtype: str | None = None,
    readout_dtype: str = "float32",
    long: LongPolicy = "error",
    share_context: bool = False,
    unit_size: int = 64,
    scalar_checks: int = 16,
    exit_threshold: float | None = None,
    random_weights: bool = False,
    seed: int = 0,
    tokenizer: str | None = None,
    revision: str | None = None,
    engine: str = "local",
    workers: int | None = None,
    address: str | None = None,
    progress_style: Style = "none",
    command_line: Sequence[str] = (),
    notify: Notify | None = None,
) -> Run:
    """Measure tasks with a looped model and return the finished run; the same call resumes an interrupted one.

    Args:
        model: a specification of `load_model`, such as "toy-ouro" or "ByteDance/Ouro-1.4B".
        tasks: specifications of `load_task`, such as "gsm8k:test" or "mine=data/my.jsonl".
        output: the run directory.
        transitions: each t of an update t → t+1 to analyse.
        depths: depths at which the utility is stored, besides both ends of every transition.
        level: "quick", "grid" or "full"; see `loopscope.store.Level`.
        tokens: store a row for every reference token.
        paths: store the nodes of the FP64 analysis.
        limit: at most so many rows of each task, or of some tasks by name.
        ids: these source rows of each task only, or of some tasks by name.
        template: a template file instead of the tasks' own.
        data_dir: folder with local copies of the benchmarks.
        batch_size: questions in a batch, "auto" (a budget of tokens, halved when memory runs out) or "paper".
        device: "cpu", "cuda", "auto".
        dtype: dtype of weights and states; None is what `load_model` takes.
        readout_dtype: arithmetic of the readout, "float32" or "float64".
        long: what to do with sequences longer than the model allows.
        share_context: run what the options of a question have in common once, instead of once an option.
        unit_size: questions measured and stored at a time.
        scalar_checks: questions of each task on which Q is computed a second way.
        exit_threshold: the exit gate's CDF threshold; None takes the checkpoint's.
        random_weights: build the model without its checkpoint; the run is marked as random.
        seed: what random weights are drawn from.
        tokenizer: another checkpoint folder or name to take the tokenizer from.
        revision: a revision of a hub model.
        engine: "local" or "ray".
        workers: model replicas of the Ray engine.
        address: address of an existing Ray cluster.
        progress_style: "auto", "bar", "plain" or "none".
        command_line: recorded in the manifest.
        notify: called with one line for whatever a user should know: resumed, finished already, mended, halved.

    Raises:
        LoopscopeError: one line for whatever is wrong; what was measured before stays.
    """
    if engine not in ("local", "ray"):
        raise LoopscopeError(f"--engine {engine!r} is not known: choose local or ray")
    settings = Settings.of(
        transitions,
        depths,
        level,
        tokens=tokens,
        paths=paths,
        batch=BatchPolicy.parse(str(batch_size)),
        unit_size=unit_size,
        readout_dtype=readout_dtype,
        scalar_checks=scalar_checks,
        exit_threshold=exit_threshold,
        long=long,
        share_context=share_context,
    )
    request = Request(
        ModelRequest(model, device, dtype, revision, random_weights, seed, tokenizer),
        DataRequest(tuple(tasks), _text(data_dir), _text(template), limit, ids),
        settings,
    )
    loaded = request.data.load()
    chosen = _engine(request, engine, workers, address)
    try:
        prepared = prepare(request, loaded, chosen.facts(), command_line)
        if share_context and not any(task.kind == "options" for task in loaded):
            (notify or _ignore)("--share-context changes nothing here: no task has options")
        with open_or_create(output, prepared.manifest) as writer:
            writer.log("call", engine=engine, workers=workers, **request.as_event())
            run_pending(chosen, prepared, writer, progress_style, notify)
            return writer.finish()
    finally:
        chosen.close()


@dataclass(frozen=True)
class Prepared:
    """A pass made ready: nothing was written yet."""

    manifest: Manifest
    tasks: tuple[PlannedTask, ...]

    def task_of(self, unit: WorkUnit) -> PlannedTask:
        """The task that a unit belongs to."""
        return next(t for t in self.tasks if (t.task.name, t.task.split) == (unit.task, unit.split))


def prepare(
    request: Request, loaded: Sequence[LoadedTask], facts: ModelFacts, command_line: Sequence[str] = ()
) -> Prepared:
    """Choose the rows that fit and say what identifies the run."""
    settings = request.settings.on(facts.device_type)
    check_sharing(settings, facts)
    tokenizer = request.model.load_tokenizer()
    tokenizer.check_fits(facts.vocabulary_size, facts.info.name)
    encoder = QuestionEncoder(tokenizer, facts.max_positions, settings.long)
    planned = tuple(encoder.plan(task, request.data.limit_of(task)) for task in loaded)
    return Prepared(build_manifest(facts, tokenizer.sha256, planned, settings, command_line), planned)


def _engine(request: Request, name: str, workers: int | None, address: str | None) -> Engine:
    if name == "local":
        return LocalEngine(request)
    from loopscope.measure.ray_engine import RayEngine

    return RayEngine(request, workers, address)


def run_pending(
    engine: Engine, prepared: Prepared, writer: RunWriter, style: Style = "none", notify: Notify | None = None
) -> None:
    """Measure and store every unit that is not there yet."""
    notify = notify or _ignore
    pending = writer.pending()
    total = sum(unit.size for unit in writer.units)
    done = total - sum(unit.size for unit in pending)
    for line in writer.discarded:
        notify(f"{writer.path}: {line}; measuring it again")
    if writer.status == "finished":
        notify(f"{writer.path} is finished: nothing to measure")
    elif done:
        notify(f"{writer.path}: resuming, {done} of {total} questions are there")
    with progress(style, prepared.manifest.model.name, total, done) as shown, OneBehind() as behind:

        def store(measured: MeasuredUnit) -> None:
            unit, tables = measured.unit, measured.tables
            with part("commit"):
                for line in measured.notices:
                    writer.log("notice", unit=unit.index, message=line)
                writer.commit(unit, tables)
            shown.advance(unit.size, int(sum(tables["examples"]["n_positions"])))

        for measured in engine.run(pending, prepared.task_of):
            for line in measured.notices:
                notify(line)
            behind.do(store, measured)


def _ignore(line: str) -> None:
    """Whoever gave no `notify` reads the run's log."""


def _text(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.fspath(path)
