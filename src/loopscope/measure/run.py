"""`loopscope measure`: one pass over a model and its tasks, into a run directory; the same call again resumes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopscope._errors import LoopscopeError
from loopscope.measure.engines import Engine, LocalEngine
from loopscope.measure.prepare import PlannedTask, QuestionEncoder, build_manifest
from loopscope.measure.progress import Style, progress
from loopscope.measure.settings import BatchPolicy, LongPolicy, Settings
from loopscope.measure.worker import Worker
from loopscope.models.load import load_model
from loopscope.models.protocol import LoopedModel
from loopscope.models.tokenizer_source import load_tokenizer
from loopscope.store.levels import Level
from loopscope.store.run import Run
from loopscope.store.units import WorkUnit
from loopscope.store.writer import RunWriter, open_or_create
from loopscope.tasks.load import load_task

_CPU_BUDGET, _GPU_BUDGET = 4096, 65536


@dataclass(frozen=True)
class Pass:
    """A pass made ready: nothing was written yet.

    Attributes:
        model: loaded, on its device.
        encoder: rows to questions.
        tasks: what is measured.
        settings: how.
    """

    model: LoopedModel
    encoder: QuestionEncoder
    tasks: tuple[PlannedTask, ...]
    settings: Settings

    def task_of(self, unit: WorkUnit) -> PlannedTask:
        """The task that a unit belongs to."""
        return next(t for t in self.tasks if (t.task.name, t.task.split) == (unit.task, unit.split))

    def local_engine(self, writer: RunWriter) -> LocalEngine:
        """The engine that measures in this process."""
        worker = Worker(self.model, self.settings, lambda message: writer.log("notice", message=message))
        return LocalEngine(worker, self.encoder, self.task_of)


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
    limit: int | None = None,
    ids: Iterable[int] | None = None,
    template: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    batch_size: str | int = "auto",
    device: str = "auto",
    dtype: str | None = None,
    readout_dtype: str = "float32",
    long: LongPolicy = "error",
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
        limit: at most so many rows of each task.
        ids: these source rows of each task only.
        template: a template file instead of the tasks' own.
        data_dir: folder with local copies of the benchmarks.
        batch_size: questions in a batch, "auto" (a budget of tokens, halved when memory runs out) or "paper".
        device: "cpu", "cuda", "auto".
        dtype: dtype of weights and states; None keeps the checkpoint's own.
        readout_dtype: arithmetic of the readout, "float32" or "float64".
        long: what to do with sequences longer than the model allows.
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
    """
    if not tasks:
        raise LoopscopeError("no task given: name one or more, e.g. --tasks arithmetic,gsm8k")
    if engine not in ("local", "ray"):
        raise LoopscopeError(f"--engine {engine!r} is not known: choose local or ray")
    loading: dict[str, Any] = {
        "device": device,
        "dtype": dtype,
        "revision": revision,
        "random_weights": random_weights,
        "seed": seed,
    }
    loaded = load_model(model, **loading)
    budget = _GPU_BUDGET if loaded.device.type == "cuda" else _CPU_BUDGET
    settings = Settings.of(
        tuple(transitions),
        tuple(depths),
        level=Level(level),
        tokens=tokens,
        paths=paths,
        batch=BatchPolicy.parse(str(batch_size), budget),
        unit_size=unit_size,
        readout_dtype=readout_dtype,
        scalar_checks=scalar_checks,
        exit_threshold=exit_threshold,
    )
    words = load_tokenizer(tokenizer or model)
    words.check_fits(loaded.vocabulary_size, loaded.name)
    encoder = QuestionEncoder(words, getattr(loaded, "max_positions", None), long)
    planned = tuple(
        encoder.plan(load_task(spec, data_dir=_folder(data_dir), limit=limit, ids=ids, template=template))
        for spec in tasks
    )
    prepared = Pass(loaded, encoder, planned, settings)
    manifest = build_manifest(
        loaded, words.path, planned, settings, limit=limit, extra={"long": long}, command_line=command_line
    )
    with open_or_create(output, manifest) as writer:
        chosen: Engine
        if engine == "ray":
            from loopscope.measure.ray_engine import RayEngine

            chosen = RayEngine(prepared, model, loading, tokenizer or model, long, workers, address)
        else:
            chosen = prepared.local_engine(writer)
        _run(chosen, prepared, writer, progress_style)
        return writer.finish()


def _run(engine: Engine, prepared: Pass, writer: RunWriter, style: Style) -> None:
    pending = writer.pending()
    total = sum(unit.size for unit in writer.units)
    done = total - sum(unit.size for unit in pending)
    for line in writer.discarded:
        warnings.warn(f"{writer.path}: {line}; measured again", stacklevel=3)
    with progress(style, prepared.model.name, total, done) as shown:
        for unit, tables in engine.run(pending):
            writer.commit(unit, tables)
            shown.advance(unit.size, int(sum(tables["examples"]["n_positions"])))


def _folder(path: str | os.PathLike[str] | None) -> Path | None:
    return None if path is None else Path(path)
