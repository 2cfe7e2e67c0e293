"""`loopscope measure`: one pass over a model and its tasks, into a run directory; the same call again resumes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from loopscope._errors import LoopscopeError, setting
from loopscope.measure import arguments
from loopscope.measure.engines import Engine, LocalEngine, MeasuredUnit
from loopscope.measure.facts import ModelFacts
from loopscope.measure.parts import part
from loopscope.measure.prepare import PlannedTask, QuestionEncoder, build_manifest, check_sharing
from loopscope.measure.progress import STYLES, Style, progress
from loopscope.measure.request import DataRequest, ModelRequest, Request
from loopscope.measure.settings import READOUT_DTYPES, BatchPolicy, LongPolicy, Settings
from loopscope.measure.threads import OneBehind
from loopscope.measure.worker import MeasuredBatch
from loopscope.store.levels import Level
from loopscope.store.manifest import Manifest
from loopscope.store.run import Run
from loopscope.store.units import WorkUnit
from loopscope.store.writer import RunWriter, open_or_create
from loopscope.tasks.loaded import LoadedTask

if TYPE_CHECKING:
    import torch

Notify = Callable[[str], None]
Text = str | os.PathLike[str]
ENGINES = ("local", "ray")
LARGEST_SEED = 2**63 - 1


def measure(
    model: Text,
    tasks: Text | Iterable[Text],
    *,
    output: Text,
    transitions: arguments.Numbers = (),
    depths: arguments.Numbers = (),
    level: Level | str = Level.GRID,
    tokens: bool = False,
    paths: bool = False,
    limit: int | str | Mapping[str, int] | None = None,
    ids: arguments.Numbers | Mapping[str, arguments.Numbers] | None = None,
    template: Text | None = None,
    data_dir: Text | None = None,
    batch_size: str | int = "auto",
    device: str | torch.device = "auto",
    dtype: str | torch.dtype | None = None,
    readout_dtype: str | torch.dtype = "float32",
    long: LongPolicy = "error",
    share_context: bool = False,
    unit_size: int = 64,
    scalar_checks: int = 16,
    exit_threshold: float | None = None,
    random_weights: bool = False,
    seed: int = 0,
    tokenizer: Text | None = None,
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
        tasks: specifications of `load_task`, such as "gsm8k:test" or "mine=data/my.jsonl": one, or a list of them.
        output: the run directory.
        transitions: each t of an update t → t+1 to analyse: a number, a list, or text such as "1-4,8".
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
    arguments.choice("progress_style", progress_style, STYLES)
    if notify is not None and not callable(notify):
        raise LoopscopeError(f"{setting('notify', notify)} cannot be called: give a function that takes one line")
    if arguments.choice("engine", engine, ENGINES) == "local":
        for name, value in (("workers", workers), ("address", address)):
            if value is not None:
                raise LoopscopeError(
                    f"{setting(name, value)} is for {setting('engine', 'ray')}: add that or leave it out"
                )
    if workers is not None:
        workers = arguments.whole("workers", workers, 1, arguments.MOST_WORKERS)
    settings = Settings.of(
        transitions,
        depths,
        level,
        tokens=arguments.switch("tokens", tokens),
        paths=arguments.switch("paths", paths),
        batch=BatchPolicy.parse(batch_size),
        unit_size=arguments.whole("unit_size", unit_size, 1, arguments.MOST_QUESTIONS),
        readout_dtype=arguments.choice("readout_dtype", _named(readout_dtype), READOUT_DTYPES),
        scalar_checks=arguments.whole("scalar_checks", scalar_checks, 0, arguments.MOST_QUESTIONS),
        exit_threshold=arguments.fraction("exit_threshold", exit_threshold),
        long=arguments.choice("long", long, get_args(LongPolicy)),
        share_context=arguments.switch("share_context", share_context),
    )
    request = Request(
        ModelRequest(
            arguments.text("model", model),
            arguments.text("device", _named(device)),
            arguments.optional_text("dtype", _named(dtype)),
            arguments.optional_text("revision", revision),
            arguments.switch("random_weights", random_weights),
            arguments.whole("seed", seed, -LARGEST_SEED, LARGEST_SEED),
            arguments.optional_text("tokenizer", tokenizer),
        ),
        DataRequest(
            arguments.task_list(tasks),
            arguments.optional_text("data_dir", data_dir),
            arguments.optional_text("template", template),
            arguments.limits(limit),
            arguments.rows(ids),
        ),
        settings,
    )
    output = arguments.text("output", output)
    loaded = request.data.load()
    chosen = _engine(request, engine, workers, address)
    try:
        prepared = prepare(request, loaded, chosen.facts(), command_line)
        if share_context and not any(task.kind == "options" for task in loaded):
            (notify or _ignore)(f"{setting('share_context', True)} changes nothing here: no task has options")
        with open_or_create(output, prepared.manifest) as writer:
            writer.log("call", engine=engine, workers=workers, **request.as_event())
            try:
                run_pending(chosen, prepared, writer, progress_style, notify)
            except KeyboardInterrupt:
                (notify or _ignore)(f"{output}: {_stored(writer)} of {_total(writer)} questions are stored")
                raise
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
    total, done = _total(writer), _stored(writer)
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

        for step in engine.run(pending, prepared.task_of):
            if isinstance(step, MeasuredBatch):
                shown.advance(step.questions, step.positions)
                continue
            for line in step.notices:
                notify(line)
            behind.do(store, step)


def _total(writer: RunWriter) -> int:
    return sum(unit.size for unit in writer.units)


def _stored(writer: RunWriter) -> int:
    return _total(writer) - sum(unit.size for unit in writer.pending())


def _ignore(line: str) -> None:
    """Whoever gave no `notify` reads the run's log."""


def _named(given: Any) -> Any:
    """A device or dtype of torch by its name."""
    return str(given).removeprefix("torch.") if type(given).__module__ == "torch" else given
