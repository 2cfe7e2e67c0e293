"""Joules that a GPU takes for a call, and how fast its clock runs meanwhile.

A device at its power limit turns its clock down until it keeps to it: how long calls take that follow each other for
long is then how much energy they need. The driver counts it (NVML), for all of the board, and brings its count up to
date some ten times a second. Calls are therefore repeated for a second, and the power between two updates of the count
is multiplied by the time of one call.
"""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any, NamedTuple

import torch

from loopscope.bench.clock import Call, Clock

SECONDS = 1.0
_SETTLED = 1.0 / 3.0  # of that time, until the clock has come down
_LIBRARY = "libnvidia-ml.so.1"
_SM_CLOCK = 1  # NVML's number of the multiprocessors' clock


class _Seen(NamedTuple):
    at: float
    joules: float
    megahertz: float


class Meter:
    """One device's."""

    def __init__(self, library: Any, device: torch.device) -> None:
        """Raises OSError where the driver does not know the device or keeps no count."""
        self._library, self._clock = library, Clock(device)
        self._handle = ctypes.c_void_p()
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
        self._ask("nvmlInit_v2")
        self._ask("nvmlDeviceGetHandleByUUID", ctypes.c_char_p(uuid), ctypes.byref(self._handle))
        self._look()

    def _ask(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            raise OSError(f"{name}: {code}")

    def _look(self) -> _Seen:
        millijoules, megahertz = ctypes.c_ulonglong(), ctypes.c_uint()
        self._ask("nvmlDeviceGetTotalEnergyConsumption", self._handle, ctypes.byref(millijoules))
        self._ask("nvmlDeviceGetClockInfo", self._handle, _SM_CLOCK, ctypes.byref(megahertz))
        return _Seen(time.perf_counter(), millijoules.value / 1000.0, float(megahertz.value))

    def figures(self, calls: dict[str, Call]) -> dict[str, float]:
        """`joules_…` of one call and `megahertz_…` while it is repeated, by the calls' names."""
        found = {}
        for name, call in calls.items():
            call()  # what happens once does not count
            repeats = max(2, round(SECONDS / self._clock.once(call)))
            updates: list[_Seen] = []
            over = threading.Event()
            watching = threading.Thread(target=self._watch, args=(updates, over))
            watching.start()
            try:
                seconds = self._clock.once(call, repeats)
            finally:
                over.set()
                watching.join()
            settled = [seen for seen in updates if seen.at > updates[0].at + _SETTLED * SECONDS]
            if len(settled) > 1:
                first, last = settled[0], settled[-1]
                found[f"joules_{name}"] = (last.joules - first.joules) / (last.at - first.at) * seconds
                found[f"megahertz_{name}"] = sum(seen.megahertz for seen in settled) / len(settled)
        return found

    def _watch(self, updates: list[_Seen], over: threading.Event) -> None:
        """The count whenever it changed."""
        while not over.wait(0.005):
            seen = self._look()
            if not updates or seen.joules != updates[-1].joules:
                updates.append(seen)


def meter(device: torch.device) -> Meter | None:
    """Where there is an NVIDIA GPU whose driver counts."""
    if device.type != "cuda":
        return None
    try:
        return Meter(ctypes.CDLL(_LIBRARY), device)
    except (OSError, AttributeError):
        return None
