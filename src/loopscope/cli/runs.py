"""One run or two: `loopscope diff RUN_A RUN_B`, `verify RUN` and `push RUN OWNER/NAME`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from loopscope.cli.flags import FORMATS, TableFormat, flag
from loopscope.errors import LoopscopeError, choice

FAILED = 1
"""Exit code where a condition of `--fail-if` is met; 2 is for the user's mistakes."""


def diff(
    first: Annotated[str, typer.Argument(metavar="RUN_A", help="A run directory.", show_default=False)],
    second: Annotated[str, typer.Argument(metavar="RUN_B", help="Another; differences are B - A.", show_default=False)],
    tasks: Annotated[str | None, flag("--tasks", "Only these tasks, separated by commas.")] = None,
    transitions: Annotated[str | None, flag("--transitions", "Only these updates, e.g. 4 or 3-6.")] = None,
    fail_if: Annotated[
        list[str] | None,
        flag("--fail-if", "Exit with 1 if a difference meets this, e.g. 'share > 0.02, gain.high < 0'."),
    ] = None,
    format: TableFormat = "text",
) -> None:
    """Two of your runs on the same questions: differences with intervals, and a check for CI."""
    from loopscope.studies.runs import checks, parse_limits
    from loopscope.studies.runs import diff as compare_runs

    choice("format", format, FORMATS)
    limits = parse_limits(fail_if or [])
    table = compare_runs(first, second, tasks=tasks, transitions=transitions)
    found = checks(table, limits)
    print(getattr(table, f"to_{format}")().rstrip("\n"))
    for text, _ in found:
        typer.echo(f"fail-if {text}", err=True)
    if any(met for _, met in found):
        raise typer.Exit(FAILED)


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
    from loopscope.measuring.verify import UTILITIES, Named, measure_again, why_not_named
    from loopscope.store import StoredRun
    from loopscope.store.verification import verify as verify_run

    named = Named(model, tasks, template, tokenizer, data_dir, device)
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


def push(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run directory.")],
    repository: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The data set; it is made if it is new.")],
    public: Annotated[bool, flag("--public", "Anybody can see it; by default it is private.")] = False,
) -> None:
    """Upload a run to the Hugging Face hub, without paths and command lines; `ls.open_run("hf://…")` reads it."""
    from loopscope.hub import push_to_hub
    from loopscope.store import StoredRun

    typer.echo(push_to_hub(StoredRun(run), repository, private=not public))
    typer.echo(f'Next: loopscope.open_run("hf://{repository}")')
