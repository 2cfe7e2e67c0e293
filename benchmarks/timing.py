"""How calls are timed, and what a row of the benchmark holds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

Call = Callable[[], object]
Spread = tuple[float, float, float]
"""Median, smallest and largest of the repeats."""
OURS = "loopscope"


@dataclass(frozen=True)
class Row:
    """One measurement with its references, all of the same run.

    Attributes:
        name: the name that `--rows` takes, or that name with a variant after a colon.
        what: one sentence.
        size: the numbers that it was measured at.
        values: loopscope's first, then those of the references by name.
        unit: of the values: "s", or "" for errors.
        figures: further numbers by name.
        errors: by quantity its RMS size, the RMS error of loopscope and that of plain FP32.
    """

    name: str
    what: str
    size: dict[str, int]
    values: dict[str, Spread]
    unit: str = "s"
    figures: dict[str, float] = field(default_factory=dict)
    errors: dict[str, Spread] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """All of it, with loopscope's value over that of each reference."""
        ours = self.values[OURS][0]
        ratios = {name: ours / value[0] for name, value in self.values.items() if name != OURS}
        return asdict(self) | {"ratios": ratios}


def race(
    device: torch.device, calls: Mapping[str, Call], repeats: int, *, warm_ups: int = 1, in_a_row: int = 1
) -> dict[str, Spread]:
    """Seconds of each call, timed in turns so that a drifting clock does not favour one.

    `in_a_row` calls are made between two looks at the clock, so that the device's work counts and not its launch.
    """
    for _ in range(warm_ups):
        for call in calls.values():
            call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            _synchronise(device)
            begun = time.perf_counter()
            for _ in range(in_a_row):
                call()
            _synchronise(device)
            seconds[name].append((time.perf_counter() - begun) / in_a_row)
    return {name: (statistics.median(found), min(found), max(found)) for name, found in seconds.items()}


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
