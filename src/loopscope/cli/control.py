"""`loopscope control RUN…`: exit rules and scales at equal cost, from recorded traces."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from loopscope.cli.flags import Runs, TableFormat, flag


def control(
    runs: Runs,
    target_cost: Annotated[
        float | None, flag("--target-cost", "Mean cost in loops that rules are fitted to; the best fixed depth's.")
    ] = None,
    check_cost: Annotated[float | None, flag("--check-cost", "A readout's weights over a loop's.")] = None,
    outside_cost: Annotated[float | None, flag("--outside-cost", "Weights outside the loop over a loop's.")] = None,
    policy: Annotated[list[str] | None, flag("--policy", "Also this one: mine.py:NAME.")] = None,
    heads: Annotated[
        str | None, flag("--heads", "Folder of learned heads; trained on the train split where it has none.")
    ] = None,
    tier: Annotated[
        str, flag("--tier", "trace, readouts (fit scaled readouts, too) or acting (policies act on the model).")
    ] = "trace",
    model: Annotated[str | None, flag("--model", "The model, where the runs' is code or has moved.")] = None,
    tasks: Annotated[str, flag("--tasks", "The runs' tasks in files, as `measure` was given them.")] = "",
    template: Annotated[str | None, flag("--template", "The runs' template file.")] = None,
    format: TableFormat = "text",
    output: Annotated[str | None, flag("--output", "Also draw the figure, into this file.")] = None,
) -> None:
    """When to stop and how far to step: rules fitted on train questions, tested on others."""
    from loopscope.cli.flags import FORMATS
    from loopscope.control.runs import control as compare
    from loopscope.errors import LoopscopeError

    if format not in FORMATS:
        raise LoopscopeError(f"there is no format {format!r}: choose from {', '.join(FORMATS)}")
    found = compare(
        runs,
        policies=policy or (),
        heads=heads,
        target_cost=target_cost,
        check_cost=check_cost,
        outside_cost=outside_cost,
        tier=tier,  # type: ignore[arg-type]
        model=model,
        tasks=tasks,
        template=template,
    )
    for table in (found.table, found.scales) if format == "text" and found.scales.rows else (found.table,):
        sys.stdout.write(getattr(table, f"to_{format}")().rstrip("\n") + "\n")
    if output is not None:
        typer.echo(found.figure().save(output), err=True)
