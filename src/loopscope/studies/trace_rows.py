"""What the model would say at every reference position after every loop, from the tables `trace` of some runs.

Shapes: P reference positions of a condition, T loops.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loopscope.errors import setting
from loopscope.stats import Clusters
from loopscope.store import StoredRun
from loopscope.studies.conditions import Condition, at
from loopscope.studies.records import Mask, Records, of_set


@dataclass(frozen=True)
class TraceRows:
    """The likeliest token at the reference positions of one evaluation set, loop by loop.

    The reference of an option task is the right option: tokens of the others are no reference positions.
    """

    condition: Condition
    row_P: NDArray[Any]
    """The question of each position."""
    reference_P: NDArray[Any]
    """The reference token."""
    top_PT: NDArray[Any]
    """The likeliest token after loops 1, …, T."""

    @property
    def loops(self) -> int:
        """T."""
        return int(self.top_PT.shape[1])

    @cached_property
    def clusters(self) -> Clusters:
        """The positions by question, which are resampled together."""
        return Clusters.of(self.row_P)

    @cached_property
    def right(self) -> Mask:
        """Whether the likeliest token is the reference, [P, T]."""
        return np.asarray(self.top_PT == self.reference_P[:, None])

    @cached_property
    def changed(self) -> Mask:
        """Whether the likeliest token is another one than a loop before; never after the first; [P, T]."""
        first = np.zeros((len(self.row_P), 1), dtype=bool)
        return np.concatenate([first, self.top_PT[:, 1:] != self.top_PT[:, :-1]], axis=1)

    @property
    def settled(self) -> NDArray[Any]:
        """The loop after which the likeliest token stays what it is: 1 where it never changes; [P]."""
        depths = np.arange(1, self.loops + 1)
        return np.asarray(np.where(self.changed, depths, 1).max(axis=1))


def trace_rows(records: Records) -> Iterator[TraceRows]:
    """Every evaluation set of the runs that hold a trace of two loops or more; one in memory at a time."""
    for run, condition in records.conditions():
        if run.manifest.settings.get("trace") and run.manifest.depths[-1] > 1:
            found = _of(run, condition)
            if len(found.row_P):
                yield found


def no_trace(records: Records) -> str:
    """The note of a study whose runs hold no trace."""
    wanted = f"{setting('trace', True)} and {setting('depths')} up to 2 or more"
    return records.nothing(f"no run holds a trace of two loops: measure with {wanted}")


def _of(run: StoredRun, condition: Condition) -> TraceRows:
    rows = run.trace.filter(of_set(condition))
    if condition.kind == "options":
        right = run.examples.lazy().filter(of_set(condition)).select("row", option="correct_option")
        rows = rows.join(right, on=["row", "option"], how="semi")
    frame = rows.select("row", "token", "depth", "token_id", "top_id").collect().sort("row", "token", "depth")
    loops = run.manifest.depths[-1]
    each = frame.gather_every(loops)
    condition = at(condition, None, each["row"].n_unique())
    top_PT = frame["top_id"].to_numpy().reshape(-1, loops)
    return TraceRows(condition, each["row"].to_numpy(), each["token_id"].to_numpy(), top_PT)
