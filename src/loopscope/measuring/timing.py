"""Where the time of a pass goes: named stretches of work, timed only while somebody asks.

A stretch on a GPU is timed by the device's own clock, so that nothing waits for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class PartTimes:
    """Seconds by name: `host` as this machine's clock saw them, `device` as the GPU's did."""

    def __init__(self) -> None:
        self.host: dict[str, float] = {}
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._lock = threading.Lock()

    def add_host(self, name: str, seconds: float) -> None:
        """So many more seconds of `name`."""
        with self._lock:
            self.host[name] = self.host.get(name, 0.0) + seconds

    def add_device(self, name: str, begun: torch.cuda.Event, ended: torch.cuda.Event) -> None:
        """A stretch of `name` between two events."""
        with self._lock:
            self._events.append((name, begun, ended))

    def device(self) -> dict[str, float]:
        """Seconds on the device; waits for it."""
        found: dict[str, float] = {}
        for name, begun, ended in self._events:
            ended.synchronize()
            found[name] = found.get(name, 0.0) + begun.elapsed_time(ended) / 1000.0
        return found


_times: PartTimes | None = None


@contextmanager
def part_times() -> Iterator[PartTimes]:
    """Time every part of every pass in this process, for as long as the block runs."""
    global _times
    before, _times = _times, PartTimes()
    try:
        yield _times
    finally:
        _times = before


@contextmanager
def part(name: str, device: torch.device | None = None) -> Iterator[None]:
    """A stretch of work; with a device it is what the device does that counts, without one what this thread does."""
    times = _times
    if times is None:
        yield
        return
    began = time.perf_counter()
    on_gpu = device is not None and device.type == "cuda"
    begun = _mark(device) if on_gpu else None
    yield
    if begun is not None:
        times.add_device(name, begun, _mark(device))
    times.add_host(name, time.perf_counter() - began)


def _mark(device: torch.device | None) -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event
