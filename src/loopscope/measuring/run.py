"""`loopscope measure`: one pass over a model and its tasks, into a run directory; the same call again resumes.

An engine measures the pending units. The driver alone writes, in a thread of its own, so records do not depend on the
engine.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from loopscope.errors import LoopscopeError, setting
from loopscope.measuring.certificates import require_affine
from loopscope.measuring.config import MeasureConfig, refuse_other_settings
from loopscope.measuring.launch import Launch, this_launch
from loopscope.measuring.loading import call_event, limit_of, load_tasks
from loopscope.measuring.plan import (
    ModelFacts,
    PlannedTask,
    QuestionEncoder,
    build_manifest,
    check_sharing,
    settings_for,
)
from loopscope.measuring.producers import Tables
from loopscope.measuring.progress import Style, progress
from loopscope.measuring.worker import FindTask, LocalEngine, Measured, MeasuredBatch, Step, joined
from loopscope.models.chat_template import ChatTemplate
from loopscope.models.tokenizer import Tokenizer
from loopscope.store.atomic import RunLock
from loopscope.store.manifest import Manifest, WorkUnit
from loopscope.store.records import RunLayout
from loopscope.store.run import StoredRun, is_run, write_vocabulary
from loopscope.store.writer import RunWriter, open_or_create
from loopscope.tasks.encoding import LoadedTask
from loopscope.tasks.token_ids import check_vocabulary, shown_through

Notify = Callable[[str], None]
SECONDS_BETWEEN_SAVES = 30.0
"""After so long without a commit, the batches of the unit that is being measured are saved."""


class Engine(Protocol):
    """Holds the model, wherever that is, and measures units with it in any order."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's or the user's, loaded once; None where there is nothing to encode."""
        ...

    def facts(self) -> ModelFacts:
        """What the driver must know of the model."""
        ...

    def run(self, units: Sequence[WorkUnit], find: FindTask, done: Mapping[WorkUnit, Set[int]]) -> Iterator[Step]:
        """Each unit once, as it is finished, and its batches before it; rows that are `done` may be left out."""
        ...

    def close(self) -> None:
        """Give back what the engine holds."""
        ...


def run_config(
    config: MeasureConfig,
    output: str,
    command_line: Sequence[str] = (),
    notify: Notify | None = None,
    check: Callable[[Manifest], None] | None = None,
) -> Path:
    """Measure what a configuration asks for into a run directory, or go on where it stopped; returns the directory.

    `check` may refuse what would be measured, before anything is written.
    """
    launch = this_launch() if config.engine == "local" else Launch()
    notify = notify if notify is not None and launch.rank == 0 else _ignore
    config, loaded = tasks_first(config)
    chosen = _engine(config)
    try:
        prepared = made_ready(config, loaded, chosen, command_line)
        if config.share_context and not any(planned.task.kind == "options" for planned in prepared.tasks):
            notify(f"{setting('share_context', True)} changes nothing here: no task has options")
        if check is not None:
            check(prepared.manifest)
        if launch.rank:
            launch.wait()  # until process 0 has opened the directory
        else:
            _make_way(config, Path(output), prepared.manifest)
        with open_or_create(output, prepared.manifest, launch.rank, launch.ranks) as writer:
            if launch.rank == 0:
                writer.log("call", **call_event(config))
                if config.lens and chosen.tokenizer is not None:
                    write_vocabulary(writer.path, prepared.manifest, chosen.tokenizer.texts())
                launch.wait()
            if leaving := chosen.facts().leaving_clock(prepared.manifest.depths[-1]):
                notify(leaving)
                writer.log("notice", message=leaving)
            try:
                run_pending(chosen, prepared, writer, config.progress if launch.rank == 0 else "none", notify)
            except KeyboardInterrupt:
                notify(f"{output}: {_stored(writer)} of {_total(writer)} questions are stored")
                raise
            launch.wait()  # until every process has committed its share
            return writer.finish().path
    finally:
        chosen.close()


def _make_way(config: MeasureConfig, directory: Path, manifest: Manifest) -> None:
    """Remove the run that is to be overwritten; refuse to continue one that has other settings."""
    if is_run(directory) and config.overwrite:
        with RunLock(RunLayout(directory).lock):  # nobody may be writing it
            shutil.rmtree(directory)
    elif is_run(directory):
        refuse_other_settings(StoredRun(directory).manifest, manifest)


@dataclass(frozen=True)
class Prepared:
    """A pass made ready: nothing was written yet."""

    settings: MeasureConfig
    manifest: Manifest
    tasks: tuple[PlannedTask, ...]

    def task_of(self, unit: WorkUnit) -> PlannedTask:
        """The task that a unit belongs to."""
        return next(t for t in self.tasks if (t.task.name, t.task.split) == (unit.task, unit.split))


def tasks_first(config: MeasureConfig) -> tuple[MeasureConfig, list[LoadedTask] | None]:
    """The tasks before the model, where they do not need the chat template that comes with it."""
    if config.apply_chat_template:
        return config, None
    loaded = load_tasks(config)
    return config.model_copy(update={"needs_tokenizer": any(task.encoding != "ids" for task in loaded)}), loaded


def made_ready(
    config: MeasureConfig, loaded: list[LoadedTask] | None, engine: Engine, command_line: Sequence[str] = ()
) -> Prepared:
    """The pass of an engine made ready."""
    if loaded is None:
        loaded = load_tasks(config, chat_of(engine.tokenizer))
    return prepare(config, loaded, engine.facts(), engine.tokenizer, command_line)


def prepare(
    config: MeasureConfig,
    loaded: Sequence[LoadedTask],
    facts: ModelFacts,
    tokenizer: Tokenizer | None,
    command_line: Sequence[str] = (),
) -> Prepared:
    """Choose the rows that fit and say what identifies the run."""
    settings = settings_for(config, facts)
    check_sharing(settings, facts)
    if settings.certify:
        remedy = f"leave out {setting('certify', True)}"
        require_affine(facts.info.name, remedy, is_affine=facts.info.affine_readout)
    if settings.lens > facts.vocabulary_size:
        raise LoopscopeError(
            f"{facts.info.name} has {facts.vocabulary_size} tokens: {setting('lens', settings.lens)} asks for more"
        )
    if tokenizer is not None:
        tokenizer.check_fits(facts.vocabulary_size, facts.info.name)
    for task in loaded:
        check_vocabulary(task, facts.vocabulary_size, facts.info.name)
    loaded = [shown_through(task, tokenizer) for task in loaded]
    encoder = QuestionEncoder(tokenizer, facts.max_positions, settings.long)
    planned = tuple(encoder.plan(task, limit_of(config, task.name)) for task in loaded)
    sha256 = None if tokenizer is None else tokenizer.sha256
    manifest = build_manifest(facts, sha256, planned, settings, command_line)
    return Prepared(settings, manifest, planned)


def chat_of(tokenizer: Tokenizer | None) -> ChatTemplate:
    """The chat template that comes with a tokenizer."""
    if tokenizer is None or tokenizer.chat_template is None:
        where = "there is no tokenizer" if tokenizer is None else f"{tokenizer.source} comes without a chat template"
        raise LoopscopeError(
            f"{where}: leave out {setting('apply_chat_template', True)}, or give a {setting('tokenizer')} with one"
            " (tokenizer_config.json or chat_template.jinja)"
        )
    template = tokenizer.chat_template
    for role, token in template.special_tokens.items():
        if role in template.source and len(tokenizer.encode(token)) != 1:
            raise LoopscopeError(
                f"{tokenizer.source} reads {token} of its chat template as plain text: give a {setting('tokenizer')}"
                " that knows it as one token, such as the checkpoint's tokenizer.json"
            )
    return template


def _engine(config: MeasureConfig) -> Engine:
    if config.engine == "local":
        return LocalEngine(config)
    from loopscope.measuring.ray_engine import RayEngine

    return RayEngine(config)


def run_pending(
    engine: Engine, prepared: Prepared, writer: RunWriter, style: Style = "none", notify: Notify | None = None
) -> None:
    """Measure and store every unit that is not there yet."""
    notify = notify or _ignore
    pending = writer.pending()
    saved = writer.saved()
    total, done = _total(writer), _stored(writer) + sum(map(len, saved.values()))
    said: set[str] = set()
    for line in writer.discarded:
        notify(f"{writer.path}: {line}; measuring it again")
    if writer.status == "finished":
        notify(f"{writer.path} is finished: nothing to measure")
    elif done:
        notify(f"{writer.path}: resuming, {done} of {total} questions are there")
    with progress(style, prepared.manifest.model.name, total, done) as shown, OneBehind() as behind:

        def store(measured: Measured[WorkUnit], tables: Tables) -> None:
            unit = measured.unit
            for line in measured.notices:
                writer.log("notice", unit=unit.index, message=line)
            if measured.backends_used:
                writer.log("ways", unit=unit.index, names=sorted(measured.backends_used))
            writer.commit(unit, tables)

        stored_at, saved_batches = time.monotonic(), 0
        for step in engine.run(pending, prepared.task_of, saved):
            if isinstance(step, MeasuredBatch):
                shown.advance(step.questions, step.positions)
                if step.begun is not None and time.monotonic() - stored_at >= SECONDS_BETWEEN_SAVES:
                    behind.do(writer.save, step.begun.unit, joined(step.begun.batches[saved_batches:]))
                    stored_at, saved_batches = time.monotonic(), len(step.begun.batches)
                continue
            for line in step.notices:
                if line not in said:  # several workers may say the same
                    notify(line)
                said.add(line)
            behind.do(store, step, joined(step.batches[saved_batches:]))
            stored_at, saved_batches = time.monotonic(), 0


class OneBehind:
    """Calls in a thread, one after the other in the order in which they were given, one at a time.

    `do` waits for the call before, so that no more than one is on its way, and raises what that one raised. Leaving
    the block waits for the last; what was given is always completed.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "loopscope-behind")
        self._last: Future[Any] | None = None

    def do(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Start a call when the one before is done."""
        self.wait()
        self._last = self._pool.submit(call, *arguments)

    def wait(self) -> None:
        """Until the last call is done; raises what it raised."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()
        if error is None:
            self.wait()


def _total(writer: RunWriter) -> int:
    return sum(unit.size for unit in writer.share)


def _stored(writer: RunWriter) -> int:
    return _total(writer) - sum(unit.size for unit in writer.pending())


def _ignore(line: str) -> None:
    """Whoever gave no `notify` reads the run's log."""
