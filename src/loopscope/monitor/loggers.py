"""Where a monitor's numbers go: JSONL files, and functions of the numbers and the step.

A `SummaryWriter` of TensorBoard, a run of W&B or trackio are objects that the user made; none of them is imported here.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, TypeAlias

from loopscope.errors import LoopscopeError, setting, shown, text
from loopscope.monitor_log import MonitorLogWriter

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
