"""`loopscope verify RUN`: what was checked and what was found; with `--layout`, how far numbers move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from loopscope.cli.flags import flag
from loopscope.errors import LoopscopeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loopscope.measuring.movement import Movement


def verify(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run directory.")],
    replay: Annotated[bool, typer.Option("--replay/--no-replay", help="Measure a sample again.")] = True,
    data_dir: Annotated[str | None, flag("--data-dir", "Where the benchmarks are, if they have moved.")] = None,
    model: Annotated[str | None, flag("--model", "Where the model is, if it has moved.")] = None,
    tokenizer: Annotated[str | None, flag("--tokenizer", "The tokenizer, if the run was given an object.")] = None,
    device: Annotated[str | None, flag("--device", "Where to measure again; the run's own by default.")] = None,
    bitwise: Annotated[
        bool, flag("--bitwise", "Instead of the sample: compute everything again and compare bit for bit.")
    ] = False,
    layout: Annotated[
        bool, flag("--layout", "Instead of the sample: how far numbers move when batches are cut in other ways.")
    ] = False,
) -> None:
    """Check hashes, schema and counts of a run, and measure a sample of it again."""
    sources = {"data_dir": data_dir, "model": model, "tokenizer": tokenizer, "device": device}
    _print_findings(run, sources, replay=replay and not layout, bitwise=bitwise)
    if layout:
        _print_movement(run, sources)


def _print_findings(path: str, sources: dict[str, Any], *, replay: bool, bitwise: bool) -> None:
    """Print the findings.

    Raises:
        LoopscopeError: there are some; it says what mends them.
    """
    from loopscope.models.user_models import must_be_named
    from loopscope.store import StoredRun, verify

    again, gaps = replay or bitwise, list[float]()
    unnamed = must_be_named(StoredRun(path).manifest.model.spec) if again and sources["model"] is None else None
    if bitwise and unnamed is not None:
        raise LoopscopeError(unnamed)
    if bitwise:
        from loopscope.measuring.bitwise import Bitwise

        compared = Bitwise(**sources)
        result = verify(path, compared)
        for check in compared.checks:
            print(check)
    elif replay and unnamed is None:
        from functools import partial

        from loopscope.measuring.replay import replay as measure_again

        result = verify(path, partial(measure_again, gaps=gaps, **sources))
    else:
        result = verify(path)
    for finding in result.findings:
        print(finding)
    rows = ", ".join(f"{count} {table}" for table, count in result.rows.items())
    measured = "everything" if bitwise else "a sample"
    sample = f"{measured} measured again" if result.replayed else f"nothing measured again{_because(unnamed)}"
    sample += f", utilities differ by at most {max(gaps):.3g}" if gaps else ""
    state = "sound" if result.ok else f"{len(result.findings)} findings"
    print(f"{path}: {state}; {result.units_checked}/{result.units_planned} units, {rows}; {sample}")
    if not result.ok:
        raise LoopscopeError(f"{path} does not hold what it should; {result.advice}")


def _because(unnamed: str | None) -> str:
    return "" if unnamed is None else f": {unnamed}"


def _print_movement(path: str, sources: dict[str, Any]) -> None:
    """Measure the first questions of a run in other layouts and print how far its numbers move."""
    from loopscope.measuring.movement import QUESTIONS, layout_movement
    from loopscope.store import StoredRun, layout_margin

    run = StoredRun(path)
    manifest = run.manifest
    found = list(layout_movement(run, **sources))
    updates = ", ".join(f"{t}→{t + 1}" for t in manifest.transitions)
    print(
        f"{manifest.model.name}, states in {manifest.dtypes.states}, readout in {manifest.dtypes.readout},"
        f" on {sources['device'] or manifest.device}: updates {updates} of the first {QUESTIONS} questions of each task"
    )
    print("\n".join(_table(found)))
    print(
        "marked layout-sensitive are outcomes of this run whose gain or slope is nearer to zero than"
        " {:g} nats (solutions), {:g} (options), {:g} (tokens)".format(*layout_margin(manifest))
    )


def _table(found: Sequence[Movement]) -> list[str]:
    """Two lines per layout: the largest movement of every quantity, and what 99 of 100 updates stay below."""
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
