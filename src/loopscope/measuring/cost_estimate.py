"""What a pass will take, in numbers and in words for people: tokens, time, memory and disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class CostEstimate:
    """What a pass will take.

    Attributes:
        model: its name.
        tasks: questions of each task.
        tokens: tokens of all sequences.
        padded: tokens that the model runs, padding included.
        batches: how many.
        seconds: of the pass, without what comes before.
        error: how far off some batches were predicted from the others, relative, root mean square.
        loading: seconds that loading the model and encoding the questions took.
        starting: seconds that the first batches took beyond their rate, while kernels are loaded.
        memory: bytes at the largest batch that was run: of the GPU, or of the process.
        rates: seconds for a batch, for a token that runs, for a scored one, for a pair of tokens of a row.
        compiling: seconds that kernels took to be compiled here and now; they are kept on disk for the next process.
        shortened: whether the largest batch was too long to be timed whole: memory is what a part of it takes.
        disk: bytes of the run directory.
        timed: batches that were timed.
        answering: seconds of the pass that generating own answers takes, taken to be as long as the given references.
        states: bytes of the disk that kept states take.
        dtypes: of states and readout, in words.
        batching: how questions are put into batches, in words.
    """

    model: str
    tasks: Mapping[str, int]
    tokens: int
    padded: int
    batches: int
    seconds: float
    error: float
    loading: float
    starting: float
    memory: int
    disk: int
    timed: int
    answering: float = 0.0
    states: int = 0
    dtypes: str = ""
    batching: str = ""
    rates: Mapping[str, float] = field(default_factory=dict)
    compiling: float = 0.0
    shortened: bool = False

    @classmethod
    def together(cls, costs: Sequence[CostEstimate]) -> CostEstimate:
        """Passes of several models one after the other."""
        models = ", ".join(cost.model for cost in costs)
        seconds = sum(cost.seconds for cost in costs)
        return cls(
            model=f"{len(costs)} models: {models}",
            tasks={task: sum(cost.tasks[task] for cost in costs) for task in costs[0].tasks},
            tokens=sum(cost.tokens for cost in costs),
            padded=sum(cost.padded for cost in costs),
            batches=sum(cost.batches for cost in costs),
            seconds=seconds,
            error=float(np.sqrt(sum(cost.seconds * cost.error**2 for cost in costs) / max(seconds, 1e-12))),
            loading=sum(cost.loading for cost in costs),
            starting=sum(cost.starting for cost in costs),
            memory=max(cost.memory for cost in costs),
            disk=sum(cost.disk for cost in costs),
            timed=sum(cost.timed for cost in costs),
            dtypes="; ".join(dict.fromkeys(cost.dtypes for cost in costs)),
            batching=", ".join(dict.fromkeys(cost.batching for cost in costs)),
            compiling=sum(cost.compiling for cost in costs),
            shortened=any(cost.shortened for cost in costs),
        )

    @property
    def whole(self) -> float:
        """Seconds from the command to the end."""
        return self.loading + self.starting + self.seconds

    @property
    def questions(self) -> int:
        """Of all tasks."""
        return sum(self.tasks.values())

    def lines(self) -> list[str]:
        """For people."""
        listed = ", ".join(f"{task} {count:,}" for task, count in self.tasks.items())
        answering = f", {duration(self.answering)} of it for own answers" if self.answering else ""
        states = f", {size(self.states)} of it kept states" if self.states else ""
        batches = "batch" if self.batches == 1 else "batches"
        foretold = "" if np.isnan(self.error) else f"batches are foretold to ± {self.error:.0%}, "
        compiled = f", {duration(self.compiling)} of compiling done already" if self.compiling > 0.1 else ""
        of_what = "parts of batches, whole ones take more" if self.shortened else "the largest batch"
        return [
            f"model      {self.model}",
            f"questions  {self.questions:,} ({listed})",
            f"tokens     {self.tokens:,} in {self.batches:,} {batches} {self.batching}; {self.padded:,} with padding"
            f" ({self.padded / self.tokens:.2f} ×)",
            f"dtype      {self.dtypes}",
            f"time       {duration(self.seconds)} for the pass{answering}, after {duration(self.loading)} of loading"
            f" and {duration(self.starting)} of starting{compiled} ({foretold}from {self.timed} timed)",
            f"memory     {size(self.memory)} at {of_what}",
            f"disk       {size(self.disk)}{states}",
        ]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(0.25), duration(42), duration(150), duration(9000)
    ('0.2 s', '42 s', '2 min 30 s', '2 h 30 min')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def size(number: float) -> str:
    """Bytes as people say them.

    >>> size(500), size(2_500_000), size(12_300_000_000)
    ('500 bytes', '2.5 MB', '12.3 GB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= factor:
            return f"{number / factor:.1f} {unit}"
    return f"{number:.0f} bytes"
