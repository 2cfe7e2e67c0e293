"""Training under a monitor: what the first update beyond the trained depth does to held-out stories, as it changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from loopscope.toys.build import Toy
from loopscope.toys.training_files import MONITOR

if TYPE_CHECKING:
    from loopscope.monitor.watch import Monitor


QUESTIONS = 16
"""Documents of stories that are looked at."""


def monitor_of(model: Toy, tokenizer: Tokenizer, folder: Path, every: int) -> Monitor:
    """A monitor of the model that writes into the folder of its training."""
    from loopscope.monitor.watch import Monitor

    depths = range(1, model.trained_depth + 2)
    log = folder / MONITOR
    return Monitor(model, "stories", depths=depths, every=every, limit=QUESTIONS, log=log, tokenizer=tokenizer)


def look(
    monitor: Monitor | None, step: int, name: str, report: Callable[[str], None], *, is_last: bool = False
) -> float:
    """Measures if it is time to, and reports a line for each update; returns the seconds that it took.

    After the last step it measures unless it was time to at that very step.
    """
    if monitor is None or (is_last and step % monitor.every == 0):
        return 0.0
    record = monitor.measure(step) if is_last else monitor.step(step)
    if record is None:
        return 0.0
    for row in record.updates:
        transition, share = row["transition"], row["share"]
        failures = "" if share is None else f", {share:.0%} of them with the right direction"
        report(
            f"{name} step {step}  update {transition}→{transition + 1} of {row['questions']} held-out {row['task']}: "
            f"gain {row['gain']:+.4f}, {row['harmful']:.0%} harmful{failures}; "
            f"quarter step {row['quarter_gain']:+.4f}, quadratic step {row['quadratic_gain']:+.4f}"
        )
    seconds: float = record.call["seconds"]
    return seconds
