"""Seconds of a call: CUDA events on a GPU, `perf_counter` elsewhere; after a warm-up, several times, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from loopscope.bench.measured import Measured

Call = Callable[[], Any]


class Clock:
    """Times calls on one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def once(self, call: Call, in_a_row: int = 1) -> float:
        """How long one call takes, until the device has finished it; of several in a row, the mean."""
        if self.device.type != "cuda":
            start = time.perf_counter()
            for _ in range(in_a_row):
                call()
            return (time.perf_counter() - start) / in_a_row
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize(self.device)
        begin.record()
        for _ in range(in_a_row):
            call()
        end.record()
        torch.cuda.synchronize(self.device)
        milliseconds: float = begin.elapsed_time(end)
        return milliseconds / 1000.0 / in_a_row

    def race(
        self, calls: Mapping[str, Call], repeats: int, warm_ups: int = 1, in_a_row: int = 1
    ) -> dict[str, Measured]:
        """Several calls in turns, so that a clock that drifts does so for all of them.

        `in_a_row` makes that many of each before the next: what a device does is measured then, and not how long the
        host takes to ask for the first of it.
        """
        for _ in range(warm_ups):
            for call in calls.values():
                call()
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(repeats):
            for name, call in calls.items():
                seconds[name].append(self.once(call, in_a_row))
        return {name: Measured.of(found) for name, found in seconds.items()}
