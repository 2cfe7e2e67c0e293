"""`loopscope measure`: one pass over a model and its tasks, into a run directory; the same call again resumes.

An engine measures the pending units. The driver alone writes, in a thread of its own, so records do not depend on the
engine. The processes of one `torchrun` each measure their share of the units, on their own GPUs, into one directory:
process 0 opens it before the others and finishes after them. Until then nothing is exchanged: what one process has
committed stays, whatever becomes of the others, and the same command continues.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import distributed

from loopscope import __version__
from loopscope.errors import LoopscopeError, setting
from loopscope.measuring.batch_pass import Tables
from loopscope.measuring.batching import EncodedTask, encode_task
from loopscope.measuring.config import MeasureConfig, canonical, refuse_other_settings
from loopscope.measuring.progress import Progress, Style
from loopscope.measuring.worker import GivenUnit, LocalEngine, Measured, MeasuredBatch, ModelFacts
from loopscope.models.tokenizer import ChatTemplate, Tokenizer
from loopscope.store.manifest import BatchInfo, Dtypes, Manifest, TaskInfo, WorkUnit, code_sha256, ids_sha256
from loopscope.store.run import RunLayout, StoredRun, is_run
from loopscope.store.schema import Level
from loopscope.store.writer import RunWriter, open_or_create, run_lock, write_vocabulary
from loopscope.tasks.encoding import LoadedTask
from loopscope.tasks.load import load_task
from loopscope.tasks.own_task import check_vocabulary, shown_through
from loopscope.tasks.prompting import Chat

if TYPE_CHECKING:
    from loopscope.measuring.ray_engine import RayEngine

Notify = Callable[[str], None]
SECONDS_BETWEEN_SAVES = 30.0
"""After so long without a commit, the batches of the unit that is being measured are saved."""
_LONGEST_PASS = timedelta(days=30)
_LIBRARIES = ("torch", "numpy", "tokenizers", "pyarrow", "safetensors")


Engine: TypeAlias = "LocalEngine | RayEngine"
"""Holds the model, wherever that is, and measures units with it in any order: each once, after its batches."""


@dataclass(frozen=True)
class Launch:
    """This process among those of its `torchrun`; alone where torchrun did not start it."""

    rank: int = 0
    ranks: int = 1

    def wait(self) -> None:
        """Until every process has come here."""
        if self.ranks > 1:
            try:
                distributed.barrier()
            except RuntimeError as error:
                raise LoopscopeError(
                    "another process of this torchrun has ended: what is stored stays, and the same command continues"
                ) from error


@cache
def this_launch() -> Launch:
    """Read what torchrun sets, take this process's GPU and meet the others; a program's own group is left alone."""
    variables = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")]
    if not all(variables) or distributed.is_initialized():
        return Launch()
    rank, ranks, local_rank = map(int, variables[:3])
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
    if ranks > 1:
        distributed.init_process_group("gloo", timeout=_LONGEST_PASS)
    return Launch(rank, ranks)


def run_config(
    config: MeasureConfig,
    output: str,
    command_line: Sequence[str] = (),
    notify: Notify | None = None,
    check: Callable[[Manifest], None] = lambda _: None,
) -> Path:
    """Measure what a configuration asks for into a run directory, or go on where it stopped; returns the directory.

    `check` may refuse what would be measured, before anything is written.
    """
    launch = this_launch() if config.engine == "local" else Launch()
    notify = notify if notify is not None and launch.rank == 0 else lambda _: None
    config, loaded = tasks_first(config)
    with ExitStack() as stack:
        if config.engine == "local":
            engine: Engine = LocalEngine(config)
        else:
            from loopscope.measuring.ray_engine import RayEngine

            engine = stack.enter_context(closing(RayEngine(config)))
        prepared = prepare(config, loaded, engine.facts, engine.tokenizer)
        manifest, directory = prepared.manifest, Path(output)
        if config.share_context and not any(task.kind == "options" for task in manifest.tasks):
            notify(f"{setting('share_context', True)} changes nothing here: no task has options")
        check(manifest)
        if launch.rank:
            launch.wait()  # until process 0 has opened the directory
        elif is_run(directory) and config.overwrite:
            with run_lock(RunLayout(directory).lock):  # nobody may be writing it
                shutil.rmtree(directory)
        elif is_run(directory):
            refuse_other_settings(StoredRun(directory).manifest, manifest)
        writer = stack.enter_context(open_or_create(output, manifest, launch.rank, launch.ranks))
        if launch.rank == 0:
            # The typed command may hold paths and tokens: no page has it from the log unless it is asked to.
            writer.log("call", **call_event(config), command_line=list(command_line))
            if config.lens and engine.tokenizer is not None:
                write_vocabulary(writer.path, manifest, engine.tokenizer.texts())
            launch.wait()
        clock, deepest = engine.facts.trained_clock, manifest.depths[-1]
        if clock is not None and deepest > clock:
            leaving = (
                f"{manifest.model.name}: steps know their time and were trained for {clock}; "
                f"those up to depth {deepest} leave the trained range"
            )
            notify(leaving)
            writer.log("notice", message=leaving)
        try:
            run_pending(engine, prepared, writer, config.progress if launch.rank == 0 else "none", notify)
        except KeyboardInterrupt:
            stored, total = writer.stored()
            notify(f"{output}: {stored} of {total} questions are stored")
            raise
        launch.wait()  # until every process has committed its share
        return writer.finish().path


@dataclass(frozen=True)
class Prepared:
    """A pass made ready, its questions encoded: nothing was written yet."""

    settings: MeasureConfig
    manifest: Manifest
    tasks: tuple[EncodedTask, ...]

    def given(self, units: Iterable[WorkUnit]) -> list[GivenUnit]:
        """Each unit with its questions."""
        by_name = {(each.task.name, each.task.split): each.questions for each in self.tasks}
        return [(unit, by_name[unit.task, unit.split][unit.start : unit.stop]) for unit in units]


def tasks_first(config: MeasureConfig) -> tuple[MeasureConfig, list[LoadedTask] | None]:
    """The tasks before the model, where they do not need the chat template that comes with it."""
    if config.apply_chat_template:
        return config, None
    loaded = load_tasks(config)
    return config.model_copy(update={"needs_tokenizer": any(task.encoding != "ids" for task in loaded)}), loaded


def load_tasks(config: MeasureConfig, chat: Chat | None = None) -> list[LoadedTask]:
    """The tasks in order, each task and split once."""
    if not config.tasks:
        raise LoopscopeError(f"no task given: name one or more, e.g. {setting('tasks', 'arithmetic,gsm8k')}")
    names = [canonical(task) for task in config.tasks]
    for name in ("limit", "ids"):
        given = getattr(config, name)
        unknown = [task for task in given if task not in names] if isinstance(given, Mapping) else []
        if unknown:
            listed = ", ".join(task if isinstance(task, str) else task.name for task in config.tasks)
            raise LoopscopeError(f"{setting(name)} names {unknown[0]}, which is not among the tasks {listed}")
    same = ("data_dir", "template", "num_fewshot", "fewshot_split", "fewshot_seed")
    settings = {name: getattr(config, name) for name in same}
    seen: dict[tuple[str, str], LoadedTask] = {}
    for name, task in zip(names, config.tasks, strict=True):
        if not isinstance(task, LoadedTask):
            chosen = {"limit": of_task(config.limit, name), "ids": of_task(config.ids, name)}
            task = load_task(task, chat=chat, **chosen, **settings)
        if config.sample is not None:
            wanted = config.sample[task.name, task.split]
            task = dataclasses.replace(task, rows=tuple(row for row in task.rows if row.source_row in wanted))
        other = seen.setdefault((task.name, task.split), task)
        if other is not task:
            raise LoopscopeError(
                f"{other.spec} and {task.spec} are rows of the same split:"
                f" measure them into two {setting('output')} folders"
            )
    return list(seen.values())


def of_task(given: Any, name: str) -> Any:
    """What a setting holds for a task, where it may hold something for each by name."""
    return given.get(name) if isinstance(given, Mapping) else given


def prepare(
    config: MeasureConfig,
    loaded: Sequence[LoadedTask] | None,
    facts: ModelFacts,
    tokenizer: Tokenizer | None,
) -> Prepared:
    """Choose and encode the rows that fit, and say what identifies the run; tasks that wait for a chat template too."""
    settings, name = facts.settled(config), facts.info.name
    if loaded is None:
        loaded = load_tasks(config, chat_of(tokenizer))
    if settings.share_context and not facts.shares_context:
        raise LoopscopeError(
            f"{name} does not say that it runs options side by side (`unpadded`): leave out"
            f" {setting('share_context', True)}"
        )
    if settings.share_context and facts.initial_state not in (None, "question"):
        raise LoopscopeError(
            f"{name} draws its initial state sequence by sequence: leave out {setting('share_context', True)}, or"
            f" choose {setting('initial_state', 'question')}"
        )
    if settings.certify and not facts.info.affine_readout:
        raise LoopscopeError(
            f"{name} is not certified, its readout is not affine: leave out {setting('certify', True)}"
        )
    if settings.lens > facts.vocabulary_size:
        raise LoopscopeError(
            f"{name} has {facts.vocabulary_size} tokens: {setting('lens', settings.lens)} asks for more"
        )
    if tokenizer is not None:
        tokenizer.check_fits(facts.vocabulary_size, name)
    how = {"spans": settings.tokens or settings.trace, "share": settings.share_context}
    tasks = []
    for task in loaded:
        if task.encoding == "ids":
            check_vocabulary(task, facts.vocabulary_size, name)
            task = shown_through(task, tokenizer)
        limit = of_task(config.limit, task.name)
        tasks.append(encode_task(task, tokenizer, facts.max_positions, config.long, limit=limit, **how))
    manifest = build_manifest(facts, None if tokenizer is None else tokenizer.sha256, tasks, settings)
    return Prepared(settings, manifest, tuple(tasks))


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


def build_manifest(
    facts: ModelFacts,
    tokenizer_sha256: str | None,
    encoded: Sequence[EncodedTask],
    settings: MeasureConfig,
) -> Manifest:
    """What identifies the run: everything that decides a number, with the hashes of what was read."""
    batch, chosen = settings.batch, settings.for_manifest()
    # What a run does not name is the rule "question"; φ is interpolated where there is something to interpolate.
    chosen |= {"model_args": dict(facts.args), "initial_state": facts.initial_state}
    needless = {"initial_state": facts.initial_state in (None, "question"), "model_args": not facts.args}
    needless["interpolate"] = facts.info.affine_readout or settings.level is Level.QUICK or not settings.transitions
    same = {name: getattr(settings, name) for name in ("transitions", "depths", "level", "tokens", "paths")}
    return Manifest(
        loopscope_version=__version__,
        code_sha256=code_sha256(),
        model=facts.info,
        tokenizer_sha256=tokenizer_sha256,
        tasks=tuple(
            TaskInfo(
                **{name: getattr(each.task, name) for name in ("name", "split", "subset", "kind")},
                rows=len(each.questions),
                rows_available=each.task.source_rows,
                limit=each.limit,
                ids_sha256=ids_sha256(question.example.id for question in each.questions),
                data_sha256=each.task.data_hash,
                template_sha256=each.task.template_hash,
                skipped=each.skipped,
            )
            for each in encoded
        ),
        **same,
        dtypes=Dtypes(states=facts.info.dtype, readout=settings.readout_dtype),
        device=facts.device_name,
        libraries={"python": platform.python_version(), **{name: version(name) for name in _LIBRARIES}},
        seeds=facts.seeds,
        batch=BatchInfo(
            policy=batch.name, size=batch.size, token_budget=batch.budget, padding=batch.padding or "right"
        ),
        unit_size=settings.unit_size,
        settings={name: value for name, value in chosen.items() if not needless.get(name)},
    )


def call_event(config: MeasureConfig) -> dict[str, Any]:
    """What the log keeps of the call: its arguments, from which a run's sources are found again.

    `model_args` stand in the manifest; rows given in Python are in the run itself.
    """
    found = {name: getattr(config, name) for name in config.arguments() if name != "model_args"}
    for name in ("data_dir", "template", "tokenizer"):
        given = found[name]
        if isinstance(given, str):  # a path must hold in another folder; a hub name stays as it is
            found[name] = os.path.abspath(given) if given and Path(given).exists() else given
        elif given is not None:
            found[name] = {"given": given.source}
    found |= {"model": config.model_spec, "folder": str(Path.cwd())}
    found["tasks"] = [task if isinstance(task, str) else {"given": task.name} for task in config.tasks]
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in found.items()}


def run_pending(engine: Engine, prepared: Prepared, writer: RunWriter, style: Style, notify: Notify) -> None:
    """Measure and store every unit that is not there yet."""
    saved = writer.saved()
    stored, total = writer.stored()
    done = stored + sum(map(len, saved.values()))
    said: set[str] = set()
    for line in writer.discarded:
        notify(f"{writer.path}: {line}; measuring it again")
    if writer.status == "finished":
        again = f"{setting('overwrite', True)} measures again"
        notify(f"{writer.path} is finished: opened as it is, nothing measured ({again})")
    elif done:
        notify(f"{writer.path}: resuming, {done} of {total} questions are there")

    def store(measured: Measured[WorkUnit], tables: Tables) -> None:
        unit = measured.unit
        for line in measured.notices:
            writer.log("notice", unit=unit.index, message=line)
        if measured.backends_used:
            writer.log("ways", unit=unit.index, names=sorted(measured.backends_used))
        writer.commit(unit, tables)

    with (
        Progress(style, prepared.manifest.model.name, total, done) as shown,
        ThreadPoolExecutor(1, "loopscope-writer") as background,  # what was given to it is always completed
    ):
        stored_at, saved_batches, writing = time.monotonic(), 0, background.submit(lambda: None)
        for step in engine.run(prepared.given(writer.pending()), saved):
            if isinstance(step, MeasuredBatch):
                shown.count(step.questions, step.positions)
                if step.begun is not None and time.monotonic() - stored_at >= SECONDS_BETWEEN_SAVES:
                    writing.result()
                    writing = background.submit(writer.save, step.begun.unit, step.begun.tables(saved_batches))
                    stored_at, saved_batches = time.monotonic(), len(step.begun.batches)
                continue
            for line in step.notices:
                if line not in said:  # several workers may say the same
                    notify(line)
                said.add(line)
            writing.result()  # one at a time; raises what that one raised
            writing = background.submit(store, step, step.tables(saved_batches))
            stored_at, saved_batches = time.monotonic(), 0
        writing.result()
