"""`loopscope bench`: the benchmark, its table on stdout."""

from __future__ import annotations

from loopscope._errors import LoopscopeError


def run(*, device: str, rows: str, quick: bool, output: str | None) -> None:
    """Measure, print, and say in the exit code whether a row broke."""
    from loopscope.bench.run import run_bench

    report = run_bench(device, rows, quick=quick, output=output)
    print(report.text())
    if report.failed:
        raise LoopscopeError(f"these rows broke: {', '.join(report.failed)}; see the traceback above")
