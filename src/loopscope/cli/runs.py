"""What is made from run directories: tables, figures, comparisons, the report, control; a run checked or uploaded."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from loopscope.cli.flags import Name, RunModel, Runs, RunTasks, RunTemplate, TableFormat, flag
from loopscope.errors import LoopscopeError

MAIN = ("mechanism", "depth-coverage", "scale-prediction", "interventions", "training")
"""What is printed as text where no table is named."""
TIERS = ("trace", "readouts", "acting")


def tables(
    runs: Runs,
    name: Name = None,
    format: TableFormat = "text",
    all: Annotated[bool, flag("--all", "As text, every table that there is, not the main ones alone.")] = False,
) -> None:
    """The paper's tables, from your own runs."""
    from loopscope.studies import TABLES, find, open_records

    studies = list(TABLES.values()) if name is None else [find(name, TABLES)]
    records = open_records(list(runs))
    results = [study.table(records) for study in studies]
    if not records.updates and not (records.logs and name == "training"):
        raise LoopscopeError(records.no_updates())
    if name is not None and not results[0].rows:
        reason = results[0].notes[-1] if results[0].notes else f"nothing in these runs (needs {studies[0].needs})"
        raise LoopscopeError(f"{studies[0].name}: {reason}")
    filled = [result for result in results if result.rows]
    if format == "json" and name is None:
        print(json.dumps([result.as_dict() for result in filled], indent=2, ensure_ascii=False, allow_nan=False))
        return
    short = name is None and format == "text" and not all
    shown = [result for result in filled if result.study in MAIN] if short else filled
    written = [_written(result, format) for result in shown]
    others = [result.study for result in filled if result not in shown]
    empty = [result.study for result in results if not result.rows]
    if others:
        written.append(f"further tables of these runs: {', '.join(others)} (--name NAME, or --all)")
    elif empty and format == "text":
        written.append(f"nothing in these runs for: {', '.join(empty)} (`loopscope studies` says what each needs)")
    print("\n\n".join(written))


def _written(table: Any, format: str) -> str:
    return str(getattr(table, f"to_{format}")()).rstrip("\n")


def figures(
    runs: Runs,
    output: Annotated[str, flag("--output", "Folder for the figures.", metavar="FOLDER")],
    name: Name = None,
    format: Annotated[
        str, flag("--format", "How figures are written.", choices=("pdf", "png", "svg"), check=True)
    ] = "pdf",
) -> None:
    """The paper's figures, from your own runs.

    Next to every figure is a JSON with its caption, the ids it shows and the hashes of what it was made from.
    """
    from loopscope.studies import FIGURES, find, open_records

    chosen = list(FIGURES.values()) if name is None else [find(name, FIGURES)]
    folder = Path(output)
    if folder.exists() and not folder.is_dir():
        raise LoopscopeError(f"{folder} is a file: give a folder for --output")
    records, missing = open_records(list(runs)), []
    for study in chosen:
        result = study.figure(records)
        if name is not None and not result.shown:
            raise LoopscopeError(f"{study.name}: {result.caption}")
        if result.shown:
            print(result.save(folder / f"{study.name}.{format}"), flush=True)
        else:
            missing.append(study.name)
    if missing:
        typer.echo(
            f"nothing in these runs for: {', '.join(missing)} (`loopscope studies` says what each needs)", err=True
        )


def compare(runs: Runs, name: Name = None, format: TableFormat = "text") -> None:
    """The paper's numbers next to your runs', with a verdict; `diff` compares two of your own runs."""
    from loopscope.studies import TABLES, find, open_records
    from loopscope.studies.comparison import compare as join

    comparison = join(open_records(list(runs)), study=None if name is None else find(name, TABLES).name)
    # As text by published row, else a line per cell.
    print(comparison.to_text().rstrip("\n") if format == "text" else _written(comparison.table(), format))


def report(
    runs: Runs,
    output: Annotated[str, flag("--output", "The HTML file.", metavar="FILE")] = "report.html",
    lens_questions: Annotated[
        int,
        flag("--lens-questions", "Questions of a task whose likeliest tokens (`--lens`) are shown.", metavar="N"),
    ] = 500,
    with_command: Annotated[
        bool, flag("--with-command", "Show the command line, paths and arguments of the model, too.")
    ] = False,
) -> None:
    """Write one self-contained interactive page about some runs."""
    from loopscope.report import write_report

    print(write_report([*runs], output, lens_questions=lens_questions, with_command=with_command))


def studies() -> None:
    """The tables and figures: name, what it shows, what a run must hold for it, where it is in the paper."""
    from loopscope.studies import FIGURES, TABLES

    for title, group in (("Tables", TABLES), ("Figures", FIGURES)):
        lines = [(study.name, study.title, study.needs, study.paper) for study in group.values()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        print(title)
        for line in lines:
            print("  " + "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
        print()
    print("The third column is the level of measurement (or the option of `measure`) that a study needs.")


def control(
    runs: Runs,
    target_cost: Annotated[
        float | None, flag("--target-cost", "Mean cost in loops that rules are fitted to; the best fixed depth's.")
    ] = None,
    check_cost: Annotated[float | None, flag("--check-cost", "A readout's weights over a loop's.")] = None,
    outside_cost: Annotated[float | None, flag("--outside-cost", "Weights outside the loop over a loop's.")] = None,
    policy: Annotated[list[str] | None, flag("--policy", "Also a policy of yours.", metavar="mine.py:NAME")] = None,
    heads: Annotated[
        str | None, flag("--heads", "Learned heads; trained on the train split where it has none.", metavar="FOLDER")
    ] = None,
    tier: Annotated[
        str, flag("--tier", "acting: policies act on the model; readouts: scaled readouts, too.", choices=TIERS)
    ] = "trace",
    model: RunModel = None,
    tasks: RunTasks = "",
    template: RunTemplate = None,
    format: TableFormat = "text",
    output: Annotated[str | None, flag("--output", "Also draw the figure, into this file.", metavar="FILE")] = None,
) -> None:
    """When to stop and how far to step: rules fitted on train questions, tested on others.

    Runs are those of one model measured with --trace: of a train split and of others. One run is divided in two.
    """
    from loopscope.control.runs import control as compare_policies

    found = compare_policies(
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
        print(_written(table, format))
    if output is not None:
        typer.echo(found.figure().save(output), err=True)


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

    limits = parse_limits(fail_if or [])
    table = compare_runs(first, second, tasks=tasks, transitions=transitions)
    found = checks(table, limits)
    print(_written(table, format))
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
    model: RunModel = None,
    tasks: RunTasks = "",
    template: RunTemplate = None,
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
