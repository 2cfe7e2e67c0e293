"""Where a monitor's records go: a JSONL file, a TensorBoard writer, a run of W&B, or any function.

TensorBoard and W&B are reached through objects that the user made; nothing of theirs is imported here, but W&B where
its active run is asked for by name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from loopscope.errors import LoopscopeError, setting, shown, text
from loopscope.monitor.summary import Record
from loopscope.store.monitor_log import MonitorLogWriter

STEP = "loopscope/step"
"""The axis of a W&B run on which a monitor's numbers lie."""


class Logger(Protocol):
    """Takes the records of one monitor."""

    def write(self, header: Mapping[str, Any], record: Record) -> None:
        """What one call found; the header says what is watched."""


def loggers(given: Any) -> list[Logger]:
    """One logger for each of what a user gave: a path, a writer, a run, a function, or a list of them."""
    listed = given if isinstance(given, list | tuple) else [] if given is None else [given]
    return [_logger(one) for one in listed]


def _logger(given: Any) -> Logger:
    if isinstance(given, str) and given == "wandb":
        return WandbLogger(None)
    if isinstance(given, str | os.PathLike):
        return FileLogger(Path(text("log", given)))
    if hasattr(given, "add_scalar"):
        return TensorBoardLogger(given)
    if hasattr(given, "log") and hasattr(given, "define_metric"):
        return WandbLogger(given)
    if callable(given):
        return FunctionLogger(given)
    raise LoopscopeError(
        f"{setting('log')} takes a file name, a SummaryWriter, a run of W&B or a function, not {shown(given)}"
    )


class FileLogger:
    """Lines in a file; that of every other process than the first has the process's rank in its name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: MonitorLogWriter | None = None

    def check(self, header: Mapping[str, Any]) -> None:
        """Refuse the log of another monitor before anything is trained."""
        self._of(header).check(header)

    def write(self, header: Mapping[str, Any], record: Record) -> None:
        """Appends the lines of one call."""
        self._writer = self._writer or self._of(header)
        self._writer.write(header, record.rows)

    def _of(self, header: Mapping[str, Any]) -> MonitorLogWriter:
        path, rank = self._path, header["rank"]
        return MonitorLogWriter(path.with_name(f"{path.stem}.rank{rank}{path.suffix}") if rank else path)


class TensorBoardLogger:
    """Scalars of a `SummaryWriter`."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, header: Mapping[str, Any], record: Record) -> None:
        """One scalar per name."""
        for name, value in record.scalars().items():
            self._writer.add_scalar(name, value, record.step)


class WandbLogger:
    """Metrics of a W&B run, on an axis of their own; None is the run that is active when the first record comes."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._defined = False

    def write(self, header: Mapping[str, Any], record: Record) -> None:
        """One row of metrics."""
        run = self._run = _active_run() if self._run is None else self._run
        if not self._defined:
            run.define_metric(STEP)
            run.define_metric("loopscope/*", step_metric=STEP)
            self._defined = True
        # W&B drops what is logged for a step behind its own, which counts calls where a training gives none.
        place = {"step": record.step} if record.step >= getattr(run, "step", 0) else {}
        run.log({STEP: record.step, **record.scalars()}, **place)


def _active_run() -> Any:
    try:
        import wandb  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise LoopscopeError(f"{setting('log', 'wandb')} needs W&B: pip install 'loopscope[training]'") from error
    if wandb.run is None:
        raise LoopscopeError(f"{setting('log', 'wandb')} is about the active run of W&B: call wandb.init first")
    return wandb.run


class FunctionLogger:
    """A function of the user's own, called with each record."""

    def __init__(self, function: Callable[[Record], Any]) -> None:
        self._function = function

    def write(self, header: Mapping[str, Any], record: Record) -> None:
        """Calls it."""
        self._function(record)
