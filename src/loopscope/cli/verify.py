"""`loopscope verify RUN`: what was checked and what was found."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from loopscope.cli.flags import flag
from loopscope.errors import LoopscopeError


def verify(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run directory.")],
    replay: Annotated[bool, typer.Option("--replay/--no-replay", help="Measure a sample again.")] = True,
    bitwise: Annotated[
        bool, flag("--bitwise", "Instead of the sample: compute everything again and compare bit for bit.")
    ] = False,
    data_dir: Annotated[str | None, flag("--data-dir", "Where the benchmarks are, if they have moved.")] = None,
    model: Annotated[str | None, flag("--model", "The model: where it is now, or the run's code.")] = None,
    tasks: Annotated[str, flag("--tasks", "The run's tasks in files, as `measure` was given them.")] = "",
    template: Annotated[str | None, flag("--template", "The run's template file.")] = None,
    tokenizer: Annotated[str | None, flag("--tokenizer", "The tokenizer, if the run was given an object.")] = None,
    device: Annotated[str | None, flag("--device", "Where to measure again; the run's own by default.")] = None,
) -> None:
    """Check hashes, schema and counts of a run, and measure a sample of it again.

    Raises:
        LoopscopeError: something was found; it says what mends it.
    """
    from loopscope.measuring.arguments import task_list
    from loopscope.measuring.verify import UTILITIES, Named, measure_again, why_not_named
    from loopscope.store import StoredRun
    from loopscope.store.verification import verify as verify_run

    named = Named(model, task_list(tasks) if tasks else (), template, tokenizer, data_dir, device)
    unnamed = why_not_named(StoredRun(run), named) if replay or bitwise else None
    if bitwise and unnamed is not None:
        raise LoopscopeError(unnamed)
    measured = (replay or bitwise) and unnamed is None
    result = verify_run(run, partial(measure_again, named=named, everything=bitwise) if measured else None)
    for finding in result.findings:
        print(finding)
    rows = ", ".join(f"{count} {table}" for table, count in result.rows.items())
    sample = "nothing measured again" + (f": {unnamed}" if unnamed else "")
    if result.replayed is not None:
        sample = f"{'everything' if bitwise else 'a sample'} measured again"
        for comparison in result.replayed.comparisons:
            if bitwise:
                print(comparison)
            if comparison.what == UTILITIES and comparison.largest is not None:
                sample += f", utilities differ by at most {comparison.largest:.3g}"
    state = "sound" if result.ok else f"{len(result.findings)} findings"
    print(f"{run}: {state}; {result.units_checked}/{result.units_planned} units, {rows}; {sample}")
    if not result.ok:
        raise LoopscopeError(f"{run} does not hold what it should; {result.advice}")
