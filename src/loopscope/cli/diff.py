"""`loopscope diff RUN_A RUN_B`: two runs on the same questions, with an exit code for continuous integration."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from loopscope.cli.flags import TableFormat, flag
from loopscope.cli.studies import FORMATS
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
        flag("--fail-if", "Exit with 1 if a difference meets this, e.g. 'share > +0.02, gain.high < 0'."),
    ] = None,
    output: Annotated[str | None, flag("--output", "File for a summary in JSON.")] = None,
    format: TableFormat = "text",
) -> None:
    """Two runs on the same questions: differences with intervals, changed outcomes, a check for CI."""
    from loopscope.store.atomic import clear_write_errors, require_plain, write_atomically
    from loopscope.studies.run_diff import diff as compare_runs

    choice("format", format, FORMATS)
    if output is not None:
        require_plain(Path(output))
    found = compare_runs(first, second, tasks=tasks, transitions=transitions, fail_if=fail_if)
    if output is not None:
        target = Path(output)
        with clear_write_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, found.to_json().encode())
    if format == "text":
        sys.stdout.write(found.to_text() + "\n")
    elif format == "json":
        sys.stdout.write(found.to_json())
    else:
        sys.stdout.write(getattr(found.table(), f"to_{format}")())
    if found.failed:
        raise typer.Exit(FAILED)
