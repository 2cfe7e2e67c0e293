"""The clock that leaves out compiling: told by Triton's own listener, which it hands on and puts back."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from loopscope.measuring.compile_clock import CompileClock

knobs = pytest.importorskip("triton.knobs")


def test_it_stands_still_while_kernels_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[bool] = []

    def earlier(*, cache_hit: bool, **_: Any) -> None:
        heard.append(cache_hit)

    monkeypatch.setattr(knobs.compilation, "listener", earlier)
    told = {"src": None, "metadata": {}, "metadata_group": {}}
    times = knobs.CompileTimes(1_000_000, [("ttir", 500_000), ("cubin", 2_000_000)], 500_000)
    with CompileClock() as clock:
        assert clock.now() <= time.perf_counter()
        knobs.compilation.listener(**told, times=times, cache_hit=False)
        knobs.compilation.listener(**told, times=times, cache_hit=True)
        ahead = threading.Thread(target=lambda: knobs.compilation.listener(**told, times=times, cache_hit=False))
        ahead.start()
        ahead.join()
        assert clock.compiling == 4.0
        assert clock.now() <= time.perf_counter() - 4.0
    assert heard == [False, True, False]
    assert knobs.compilation.listener is earlier


def test_it_puts_the_listener_back_after_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knobs.compilation, "listener", None)
    with pytest.raises(ZeroDivisionError), CompileClock():
        _ = 1 / 0
    assert knobs.compilation.listener is None
