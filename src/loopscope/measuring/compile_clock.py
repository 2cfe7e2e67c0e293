"""A clock that stands still while Triton compiles a kernel, which is kept on disk and not compiled a second time."""

from __future__ import annotations

import threading
import time
from importlib import import_module
from types import TracebackType
from typing import Any, Self


class CompileClock:
    """Seconds without those of compiling, while it is open; without Triton an ordinary clock.

    What another thread compiles holds up the one that reads the clock only where it waits for it.

    Attributes:
        compiling: seconds that kernels took to compile so far, in the thread that made the clock.
    """

    def __init__(self) -> None:
        self.compiling = 0.0
        self._thread = threading.get_ident()
        self._knobs = _compilation_knobs()

    def now(self) -> float:
        """Only differences mean something."""
        return time.perf_counter() - self.compiling

    def __enter__(self) -> Self:
        if self._knobs is not None:
            self._before, self._knobs.listener = self._knobs.listener, self._compiled
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._knobs is not None:
            self._knobs.listener = self._before

    def _compiled(self, *, times: Any, cache_hit: bool, **more: Any) -> None:
        if not cache_hit and threading.get_ident() == self._thread:
            self.compiling += times.total / 1e6
        if self._before is not None:
            self._before(times=times, cache_hit=cache_hit, **more)


def _compilation_knobs() -> Any:
    """Where Triton takes a listener, in versions that do."""
    try:
        compilation: Any = import_module("triton.knobs").compilation
    except ImportError:
        return None
    return compilation if hasattr(compilation, "listener") else None
