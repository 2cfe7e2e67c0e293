"""`loopscope verify RUN`: what was checked and what was found.

`loopscope bench`: the benchmark, its table on stdout.

`loopscope train-toy`: rebuilds an embedded model from nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopscope.errors import LoopscopeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loopscope.measuring.movement import Movement


def verify_run(
    path: str, *, replay: bool, data_dir: str | None = None, model: str | None = None, device: str | None = None
) -> None:
    """Print the findings.

    Raises:
        LoopscopeError: there are some; it says what mends them.
    """
    from loopscope.store import verify

    if replay:
        from functools import partial

        from loopscope.measuring.replay import replay as measure_again

        result = verify(path, partial(measure_again, data_dir=data_dir, model=model, device=device))
    else:
        result = verify(path)
    for finding in result.findings:
        print(finding)
    rows = ", ".join(f"{count} {table}" for table, count in result.rows.items())
    sample = "a sample measured again" if result.replayed else "nothing measured again"
    state = "sound" if result.ok else f"{len(result.findings)} findings"
    print(f"{path}: {state}; {result.units_checked}/{result.units_planned} units, {rows}; {sample}")
    if not result.ok:
        raise LoopscopeError(f"{path} does not hold what it should; {result.advice}")


def show_layout_movement(
    path: str, *, data_dir: str | None = None, model: str | None = None, device: str | None = None
) -> None:
    """Measure the first questions of a run in other layouts and print how far its numbers move."""
    from loopscope.measuring.movement import QUESTIONS, layout_movement
    from loopscope.store import StoredRun, layout_margin

    run = StoredRun(path)
    manifest = run.manifest
    found = list(layout_movement(run, data_dir=data_dir, model=model, device=device))
    updates = ", ".join(f"{t}→{t + 1}" for t in manifest.transitions)
    print(
        f"{manifest.model.name}, states in {manifest.dtypes.states}, readout in {manifest.dtypes.readout},"
        f" on {device or manifest.device}: updates {updates} of the first {QUESTIONS} questions of each task"
    )
    print("\n".join(_table(found)))
    print(
        "marked layout-sensitive are outcomes of this run whose gain or slope is nearer to zero than"
        " {:g} nats (solutions), {:g} (options), {:g} (tokens)".format(*layout_margin(manifest))
    )


def _table(found: Sequence[Movement]) -> list[str]:
    """Two lines a layout: the largest movement of every quantity, and what 99 of 100 updates stay below."""
    import numpy as np

    quantities = list(found[0].moved)
    lines = [["task", "", "layout", "", *quantities, "outcomes"]]
    for one in found:
        largest = [f"{moved.max():.1e}" for moved in one.moved.values()]
        most = [f"{np.quantile(moved, 0.99):.1e}" for moved in one.moved.values()]
        lines.append([one.task, one.table, one.layout, "largest", *largest, f"{one.flipped} of {one.updates} flip"])
        lines.append(["", "", "", "99%", *most, ""])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def run(**flags: Any) -> None:
    """Measure, print, and say in the exit code whether a row broke."""
    from loopscope.bench.run import run_bench

    report = run_bench(**flags)
    print(report.text())
    if report.failed:
        raise LoopscopeError(f"these rows broke: {', '.join(report.failed)}; see the traceback above")


def train_toy(
    name: str, *, seed: int = 0, device: str = "auto", minutes: float = 8.0, output: Path | None = None
) -> None:
    """Trains toy-ouro or toy-huginn; the same command goes on where an interrupted one stopped."""
    from loopscope.toys.run import train_toy as train

    train(name, seed=seed, device=device, minutes=minutes, output=output)
