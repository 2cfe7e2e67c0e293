"""`loopscope bench`: the benchmark, its table on stdout."""

from __future__ import annotations

from typing import Any

from loopscope._errors import LoopscopeError


def run(**flags: Any) -> None:
    """Measure, print, and say in the exit code whether a row broke."""
    from loopscope.bench.run import run_bench

    report = run_bench(**flags)
    print(report.text())
    if report.failed:
        raise LoopscopeError(f"these rows broke: {', '.join(report.failed)}; see the traceback above")
