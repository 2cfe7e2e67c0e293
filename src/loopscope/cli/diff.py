"""`loopscope diff RUN_A RUN_B`: two runs on the same questions, with an exit code for continuous integration."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from loopscope.cli.flags import FORMATS, TableFormat, flag
from loopscope.errors import choice

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
    from loopscope.studies.run_diff import checks, parse_limits
    from loopscope.studies.run_diff import diff as compare_runs

    choice("format", format, FORMATS)
    limits = parse_limits(fail_if or [])
    table = compare_runs(first, second, tasks=tasks, transitions=transitions)
    found = checks(table, limits)
    sys.stdout.write(getattr(table, f"to_{format}")().rstrip("\n") + "\n")
    for text, _ in found:
        typer.echo(f"fail-if {text}", err=True)
    if any(met for _, met in found):
        raise typer.Exit(FAILED)
