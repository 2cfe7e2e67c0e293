"""`Monitor`: every some steps of a training, what the chosen updates of the model do to held-out questions or a batch.

It is a pass of `measuring` at level quick over the model as it is in memory: the numbers are those that
`loopscope measure` finds for a checkpoint saved at that moment. The training does not notice (`untouched`).
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeAlias

import polars as pl
import torch

from loopscope import __version__
from loopscope.errors import LoopscopeError, choice, setting, shown, text, whole
from loopscope.measuring.batch_pass import Tables
from loopscope.measuring.config import MOST_QUESTIONS, BatchPolicy, MeasureConfig, Numbers
from loopscope.measuring.model_check import before_a_pass, checked
from loopscope.measuring.update import Columns
from loopscope.measuring.worker import Measured, Worker
from loopscope.models.load import find_dtype
from loopscope.models.protocol import LoopedModel
from loopscope.monitor.watched import ANY_BATCH, Autocast, WatchedTask, bare, batch_task, is_batch, tasks_of, untouched
from loopscope.monitor_log import FORMAT, VERSION, MonitorLogWriter
from loopscope.path import Outcome
from loopscope.store.schema import ends_of

EVERY = 200
"""Steps between two calls."""
QUESTIONS = 16
"""Questions of each task, or rows of a batch."""
MOST_STEPS = 10**15
BATCH_TOKENS = {"cpu": 4096}
GPU_BATCH_TOKENS = 16384
"""Padded tokens that are measured at a time: a training leaves little memory free."""
RANKS = ("first", "all")


MEANS = (
    *("utility_before", "utility_after", "gain", "slope", "quadratic"),
    *("quadratic_scale", "quarter_gain", "quadratic_gain"),
)
"""Columns of a pass whose means are logged."""
LOGGED_DEPTH = ("utility", "accuracy")
"""Of a depth, what goes to TensorBoard and W&B."""
LOGGED_UPDATE = (
    *("gain", "slope", "quadratic", "accumulated_curvature", "quadratic_scale", "quarter_gain", "quadratic_gain"),
    *("progressing", "neutral", "directional", "finite_step", "harmful", "share"),
    *("sign_slope", "sign_quadratic", "quarter_recovery", "quadratic_recovery"),
)
"""The same of an update."""


@dataclass(frozen=True)
class Record:
    """What one call found.

    Attributes:
        step: of the training.
        depths: one row per task and depth.
        updates: one row per task and transition.
        call: what the measuring took.
    """

    step: int
    depths: tuple[Mapping[str, Any], ...]
    updates: tuple[Mapping[str, Any], ...]
    call: Mapping[str, Any]

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        """All of them, as the log holds them."""
        return [*self.depths, *self.updates, self.call]

    def scalars(self) -> dict[str, float]:
        """One number per name, such as `loopscope/gain/4-5`; with several tasks `loopscope/stories/gain/4-5`.

        What is not defined (a share of failures where there are none) is left out.
        """
        several = len({row["task"] for row in self.depths}) > 1
        found: dict[str, float] = {}
        for rows, names in ((self.depths, LOGGED_DEPTH), (self.updates, LOGGED_UPDATE)):
            for row in rows:
                place = row["depth"] if "depth" in row else "{}-{}".format(*ends_of(row["transition"]))
                group = f"loopscope/{row['task']}" if several else "loopscope"
                found |= {f"{group}/{name}/{place}": row[name] for name in names if row.get(name) is not None}
        return found


class Monitor:
    """Watches the updates of a looped model while it is trained.

    Attributes:
        model: the looped model, without what was around it.
        every: steps between two calls.
        settings: those of the pass.

    >>> import loopscope as ls
    >>> model = ls.load_model("toy-ouro")  # or the model that you train, from ls.wrap or a class of your own
    >>> monitor = Monitor(model, "stories", transitions=[4], every=100, limit=4)
    >>> monitor.step(99)
    >>> found = monitor.step(100).updates[0]
    >>> found["transition"], found["questions"], found["gain"] < 0 < found["quadratic_gain"]
    (4, 4, True)
    """

    def __init__(
        self,
        model: Any,
        data: Any = None,
        *,
        transitions: Numbers | None = None,
        depths: Numbers = (),
        every: int = EVERY,
        limit: int = QUESTIONS,
        log: Any = None,
        tokenizer: Any = None,
        autocast: str | torch.dtype | None = None,
        ranks: str = "first",
        readout_dtype: str = "float32",
        data_dir: str | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        """What to watch, and where to write it.

        Args:
            model: the model that is trained: a `LoopedModule`, or what `wrap` or `loop_layers` made of it.
                `DistributedDataParallel` and `torch.compile` around it are taken off.
            data: held-out questions: tasks as `measure` takes them, or a batch: token ids [rows, width], a mapping with
                `input_ids`, `labels` and `attention_mask`, or a pair of inputs and targets. Left out, every `step` is
                given the current batch.
            transitions: each t of an update t → t+1, also beyond the trained depth; left out, the first beyond it.
                Every further one costs a good part of a forward pass.
            depths: depths at which the utility is logged, besides both ends of every transition.
            every: steps between two calls.
            limit: the most questions of each task, or rows of a batch.
            log: a function of a dictionary of numbers and the step, a JSONL file, a `SummaryWriter` of TensorBoard, a
                run of W&B, the module `wandb` for its active run, `trackio`; or a list of these.
            tokenizer: as in `measure`.
            autocast: a dtype, "bfloat16" say: `embed` and `step` run under autocast, as in the training. Left out, they
                run in the weights' own arithmetic, as a saved checkpoint is measured.
            ranks: with `torch.distributed`, whether the "first" process measures or "all" of them do, each its own.
            readout_dtype: as in `measure`.
            data_dir: as in `measure`.
            batch_tokens: padded tokens that are measured at a time; 4096 on a CPU, 16384 elsewhere.

        Raises:
            LoopscopeError: one line for whatever is wrong.
        """
        self.model = bare(model)
        self.every = whole("every", every, 1, MOST_STEPS)
        self._limit = whole("limit", limit, 1, MOST_QUESTIONS)
        self._ranks = choice("ranks", ranks, RANKS)
        self._autocast = None if autocast is None else find_dtype(autocast)
        self._files, self._functions = loggers(log)
        tokens = BATCH_TOKENS.get(self.model.device.type, GPU_BATCH_TOKENS) if batch_tokens is None else batch_tokens
        self.settings = MeasureConfig(
            model=self.model,
            tasks=() if data is None or is_batch(data) else data,
            transitions=() if transitions is None else transitions,
            depths=depths,
            level="quick",
            limit=self._limit,
            tokenizer=tokenizer,
            data_dir=data_dir,
            short_steps=True,
            batch=BatchPolicy("tokens", budget=whole("batch_tokens", tokens, 1, MOST_QUESTIONS)),
            readout_dtype=str(readout_dtype).removeprefix("torch."),
        ).beyond(self.model.trained_depth, self.model.name)
        self._tasks: list[WatchedTask] = []
        with untouched(self.model):
            if is_batch(data):
                self._tasks = [batch_task(data, self._limit)]
            elif data is not None:
                self._tasks = tasks_of(self.model, self.settings)
            checked(self.model, before_a_pass(self.settings.level, self.settings.readout_dtype)).require()
        run = self.model if self._autocast is None else Autocast(self.model, self._autocast)
        self._worker = Worker(run, self.settings)
        for file in self._files:
            file.check(self._header(*_place(), current=not self._tasks))
        self._began: float | None = None
        self._spent = 0.0

    def step(self, step: int, batch: Any = None) -> Record | None:
        """Measure and log if it is time to.

        Args:
            step: of the training: it is time where `every` divides it.
            batch: the current batch, to be measured instead of held-out questions.

        Returns:
            What was found; None where it is not time, or where another process measures.
        """
        return self.measure(step, batch) if whole("step", step, 0, MOST_STEPS) % self.every == 0 else None

    def measure(self, step: int, batch: Any = None) -> Record | None:
        """The same, whether it is time or not."""
        rank, world = _place()
        if rank and self._ranks == "first":
            return None
        tasks = self._tasks if batch is None else [batch_task(batch, self._limit)]
        if not tasks:
            raise LoopscopeError("there is nothing to measure: give the monitor tasks or a batch, or step() a batch")
        started = _now(self.model)
        depths, updates, questions, positions = [], [], 0, 0
        with untouched(self.model):
            for task in tasks:
                found = self._worker.run([(task.name, task.questions)])
                (tables,) = (each.tables() for each in found if isinstance(each, Measured))
                depths += depth_rows(step, task.name, tables)
                updates += update_rows(step, task.name, tables["questions"])
                questions += len(task.questions)
                positions += sum(question.positions for question in task.questions)
        call = {"kind": "call", "step": step, "questions": questions, "positions": positions}
        record = Record(step, tuple(depths), tuple(updates), call | self._cost(started))
        for file in self._files:
            file.write(self._header(rank, world, current=batch is not None), record.rows)
        for function in self._functions:
            function(record.scalars(), step)
        return record

    def _cost(self, started: float) -> dict[str, float | None]:
        now = _now(self.model)
        self._began = started if self._began is None else self._began
        before = started - self._began
        self._spent += now - started
        share = self._spent / (now - self._began) if before else None
        return {"seconds": round(now - started, 6), "share_of_time": share}

    def _header(self, rank: int, world: int, *, current: bool) -> dict[str, Any]:
        model, settings = self.model, self.settings
        return {
            "format": FORMAT,
            "version": VERSION,
            "loopscope": __version__,
            "model": model.name,
            "family": model.family,
            "boundary": model.boundary,
            "trained_depth": model.trained_depth,
            "affine_readout": model.head is not None,
            "dtype": _named(model.dtype),
            "autocast": None if self._autocast is None else _named(self._autocast),
            "readout_dtype": settings.readout_dtype,
            "transitions": list(settings.transitions),
            "depths": list(settings.depths),
            "every": self.every,
            "tasks": [dict(ANY_BATCH)] if current else [dict(task.facts) for task in self._tasks],
            "rank": rank,
            "world": world,
        }


def _place() -> tuple[int, int]:
    """The rank of this process and the number of processes."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def _now(model: LoopedModel) -> float:
    """The time when everything that was asked of the device is done."""
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
    return time.monotonic()


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def depth_rows(step: int, task: str, tables: Tables) -> list[dict[str, Any]]:
    """The mean utility at every depth, and where there are options, how often the right one is the likeliest."""
    columns, examples = tables["depths"], tables["examples"]
    frame = pl.DataFrame({name: columns[name] for name in ("row", "depth", "utility")})
    if "chosen_option" in columns:
        correct = dict(zip(examples["row"], examples["correct_option"], strict=True))
        right = pl.Series(columns["chosen_option"]) == frame["row"].replace_strict(correct)
        frame = frame.with_columns(accuracy=right)
    return _rows("depth", step, task, frame.drop("row"), "depth")


def update_rows(step: int, task: str, questions: Columns) -> list[dict[str, Any]]:
    """Everything about every update."""
    if not questions:
        return []
    frame = pl.DataFrame({name: questions[name] for name in ("transition", *MEANS, "outcome")})
    gain, slope, outcome = pl.col("gain"), pl.col("slope"), pl.col("outcome")
    failures, harmful = outcome == Outcome.FINITE_STEP_FAILURE, outcome >= Outcome.DIRECTIONAL_FAILURE
    columns = frame.select(
        "transition",
        *MEANS,
        accumulated_curvature=gain - slope,
        progressing=outcome == Outcome.PROGRESSING,
        neutral=outcome == Outcome.NEUTRAL,
        directional=outcome == Outcome.DIRECTIONAL_FAILURE,
        finite_step=failures,
        harmful=harmful,
        share=pl.when(harmful).then(failures),
        sign_slope=slope.sign() == gain.sign(),
        sign_quadratic=(slope + pl.col("quadratic")).sign() == gain.sign(),
        quarter_recovery=pl.when(failures).then(pl.col("quarter_gain") > 0),
        quadratic_recovery=pl.when(failures).then(pl.col("quadratic_gain") > 0),
    )
    return _rows("update", step, task, columns, "transition")


def _rows(kind: str, step: int, task: str, columns: pl.DataFrame, by: str) -> list[dict[str, Any]]:
    """The mean of each column over the questions that have it, and its standard error where there are two or more."""
    values = pl.exclude(by).cast(pl.Float64)
    error = (values.std() / values.count().sqrt()).name.suffix("_se")
    found = columns.group_by(by).agg(pl.len().alias("questions"), values.mean(), error).sort(by)
    return [{"kind": kind, "step": step, "task": task, **row} for row in found.iter_rows(named=True)]


STEP = "loopscope/step"
"""The axis of a W&B run on which a monitor's numbers lie."""
Function: TypeAlias = Callable[[Mapping[str, float], int], Any]


def loggers(given: Any) -> tuple[list[MonitorLogWriter], list[Function]]:
    """Files and functions from what a user gave: a path, a writer, a run, a function, or a list of them."""
    listed = given if isinstance(given, list | tuple) else [] if given is None else [given]
    files = [MonitorLogWriter(text("log", one)) for one in listed if isinstance(one, str | os.PathLike)]
    return files, [_function(one) for one in listed if not isinstance(one, str | os.PathLike)]


def _function(given: Any) -> Function:
    if hasattr(given, "add_scalar"):
        return lambda numbers, step: [given.add_scalar(name, value, step) for name, value in numbers.items()]
    if hasattr(given, "define_metric"):
        return functools.partial(_log_to_wandb, given)
    if hasattr(given, "log"):  # trackio, the module or a run
        return lambda numbers, step: given.log(dict(numbers), step=step)
    if callable(given):
        return given  # type: ignore[no-any-return]
    raise LoopscopeError(
        f"{setting('log')} takes a file name, a SummaryWriter, wandb or trackio (the module or a run), or a function, "
        f"not {shown(given)}"
    )


def _log_to_wandb(given: Any, numbers: Mapping[str, float], step: int) -> None:
    """One row of metrics on an axis of their own; the module stands for its active run."""
    run = given.run if isinstance(given, ModuleType) else given
    if run is None:
        raise LoopscopeError(f"{setting('log')} is the module of W&B, which has no active run: call wandb.init first")
    run.define_metric(STEP)
    run.define_metric("loopscope/*", step_metric=STEP)
    # W&B drops what is logged for a step behind its own, which counts calls where a training gives none.
    place = {"step": step} if step >= getattr(run, "step", 0) else {}
    run.log({STEP: step, **numbers}, **place)
