"""What is made from run directories: `loopscope tables`, `figures`, `compare`, `report`, `control`; `studies` lists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from loopscope.cli.flags import FORMATS, Name, Runs, TableFormat, flag
from loopscope.errors import LoopscopeError, choice

MAIN = ("mechanism", "depth-coverage", "scale-prediction", "interventions", "training")
"""What is printed as text where no table is named."""


def tables(
    runs: Runs,
    name: Name = None,
    format: TableFormat = "text",
    all: Annotated[bool, flag("--all", "As text, every table that there is, not the main ones alone.")] = False,
) -> None:
    """The paper's tables, from your own runs."""
    from loopscope.studies import TABLES, find, open_records

    choice("format", format, FORMATS)
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
    written = [getattr(result, f"to_{format}")().rstrip("\n") for result in shown]
    others = [result.study for result in filled if result not in shown]
    empty = [result.study for result in results if not result.rows]
    if others:
        written.append(f"further tables of these runs: {', '.join(others)} (--name NAME, or --all)")
    elif empty and format == "text":
        written.append(f"nothing in these runs for: {', '.join(empty)} (`loopscope studies` says what each needs)")
    print("\n\n".join(written))


def figures(
    runs: Runs,
    output: Annotated[str, flag("--output", "Folder for the figures.", metavar="FOLDER")],
    name: Name = None,
    format: Annotated[str, flag("--format", "How figures are written.", choices=("pdf", "png", "svg"))] = "pdf",
) -> None:
    """The paper's figures, from your own runs.

    Next to every figure is a JSON with its caption, the ids it shows and the hashes of what it was made from.
    """
    from loopscope.studies import FIGURES, find, open_records
    from loopscope.studies.figures import FIGURE_FORMATS

    choice("format", format, FIGURE_FORMATS)
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

    choice("format", format, FORMATS)
    comparison = join(open_records(list(runs)), study=None if name is None else find(name, TABLES).name)
    # As text by published row, else a line per cell.
    written = comparison.to_text() if format == "text" else getattr(comparison.table(), f"to_{format}")()
    print(written.rstrip("\n"))


def report(
    runs: Runs,
    output: Annotated[str, flag("--output", "The HTML file.", metavar="FILE")] = "report.html",
    lens_questions: Annotated[
        int, flag("--lens-questions", "Of how many questions of a task the page holds the lens.", metavar="N")
    ] = 500,
    with_command: Annotated[
        bool, flag("--with-command", "Show the command line, paths and arguments of the model, too.")
    ] = False,
) -> None:
    """One self-contained interactive page."""
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
    from loopscope.control.runs import control as compare_policies

    choice("format", format, FORMATS)
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
        print(getattr(table, f"to_{format}")().rstrip("\n"))
    if output is not None:
        typer.echo(found.figure().save(output), err=True)
