"""What is measured, each figure with its spread: seconds, memory, errors.

Seconds are those of CUDA events on a GPU and of `perf_counter` elsewhere, after a warm-up, several times, in turns.
Memory is what a call needs beyond what is held before it: the allocator's own peak on a GPU; on a CPU the peak of the
process, which no call can take back, so that every figure comes from a fresh process. Errors are those against FP64,
ours beside the plain FP32 implementation's, with an interval that says what chance has to do with it.
"""

from __future__ import annotations

import gc
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Measured:
    """The median of some repeats with the smallest and the largest, in the unit of the row it belongs to."""

    value: float
    low: float
    high: float
    repeats: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Measured:
        """Of all repeats.

        >>> Measured.of([3.0, 1.0, 2.0])
        Measured(value=2.0, low=1.0, high=3.0, repeats=3)
        """
        return cls(statistics.median(values), min(values), max(values), len(values))

    def plus(self, other: Measured) -> Measured:
        """One after the other."""
        repeats = min(self.repeats, other.repeats)
        return Measured(self.value + other.value, self.low + other.low, self.high + other.high, repeats)

    def times(self, factor: float) -> Measured:
        """As many times over."""
        return Measured(self.value * factor, self.low * factor, self.high * factor, self.repeats)


def over(a: float, b: float) -> float:
    """a/b; nothing over nothing is no difference.

    >>> over(1.0, 4.0), over(0.0, 0.0), over(1.0, 0.0)
    (0.25, 1.0, inf)
    """
    if b == 0.0:
        return 1.0 if a == 0.0 else math.inf
    return a / b


def finite(value: float) -> float | None:
    """For JSON, which knows no infinities."""
    return value if math.isfinite(value) else None


Call = Callable[[], Any]


@dataclass(frozen=True)
class Clock:
    """Times calls on one device, by the device's own clock or, with `host`, by this machine's."""

    device: torch.device
    host: bool = False

    def synchronise(self) -> None:
        """Waits for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def once(self, call: Call, in_a_row: int = 1) -> float:
        """How long one call takes, until the device has finished it; of several in a row, the mean."""
        self.synchronise()
        if self.host or self.device.type != "cuda":
            start = time.perf_counter()
            for _ in range(in_a_row):
                call()
            self.synchronise()
            return (time.perf_counter() - start) / in_a_row
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        for _ in range(in_a_row):
            call()
        end.record()
        self.synchronise()
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


MIB = 2.0**20


def extra_on_gpu(call: Call, device: torch.device) -> float:
    """MiB above what is held, at the highest point of the call."""
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - held) / MIB


def peak_mib() -> float:
    """The most memory this process has held.

    Linux keeps that mark for the memory of this program alone. `getrusage` would also count what the process that
    started it had held.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return float(line.split()[1]) * 1024.0 / MIB
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / MIB if sys.platform == "darwin" else peak * 1024.0 / MIB


def in_fresh_process(module: str, *arguments: object) -> dict[str, float]:
    """What a module of this package, run as a program, prints: one JSON object."""
    command = [sys.executable, "-m", f"loopscope.bench.{module}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the memory probe failed:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


_RESAMPLES = 400
_LEVEL = 0.95


@dataclass(frozen=True)
class Error:
    """Errors of one quantity; `size` is the quantity's own RMS.

    `low` and `high` hold the ratio of the RMS errors in 95% of resampled tokens (bootstrap): where 1 lies between them,
    these tokens do not tell which implementation is the more accurate.
    """

    quantity: str
    size: float
    ours_rms: float
    plain_rms: float
    ours_max: float
    plain_max: float
    low: float
    high: float

    @property
    def rms_ratio(self) -> float:
        """Ours over plain: above 1 the plain implementation is the more accurate."""
        return over(self.ours_rms, self.plain_rms)

    @property
    def max_ratio(self) -> float:
        """The same of the largest errors, each a single token's and subject to chance."""
        return over(self.ours_max, self.plain_max)


def error_of(quantity: str, exact: Tensor, ours: Tensor, plain: Tensor) -> Error:
    """Of all values of one quantity, [tokens] or [tokens, scales], against those in FP64."""
    off, plain_off = ours.double() - exact, plain.double() - exact
    squares, plain_squares = (each.square().reshape(each.shape[0], -1).mean(1).cpu() for each in (off, plain_off))
    low, high = _interval(squares, plain_squares)
    rms, plain_rms = float(squares.mean().sqrt()), float(plain_squares.mean().sqrt())
    size = float(exact.double().square().mean().sqrt())
    return Error(quantity, size, rms, plain_rms, float(off.abs().max()), float(plain_off.abs().max()), low, high)


def _interval(squares_T: Tensor, plain_squares_T: Tensor) -> tuple[float, float]:
    tokens = squares_T.shape[0]
    drawn = torch.randint(tokens, (_RESAMPLES, tokens), generator=torch.Generator().manual_seed(20260904))
    ratios = [
        over(float(a), float(b)) ** 0.5
        for a, b in zip(squares_T[drawn].mean(1), plain_squares_T[drawn].mean(1), strict=True)
    ]
    ordered = sorted(ratios)
    outside = round((1.0 - _LEVEL) / 2.0 * _RESAMPLES)
    return ordered[outside], ordered[-1 - outside]
