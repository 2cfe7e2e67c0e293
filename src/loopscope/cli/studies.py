"""What is made from run directories: `loopscope tables`, `figures`, `compare` and `report`; `studies` lists them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from loopscope.cli.flags import FORMATS, Name, Runs, TableFormat, flag
from loopscope.errors import LoopscopeError

MAIN = ("mechanism", "depth-coverage", "scale-prediction", "interventions", "training")
"""What is printed as text where no table is named."""


def tables(
    runs: Runs,
    name: Name = None,
    format: TableFormat = "text",
    all: Annotated[bool, flag("--all", "As text, every table that there is, not the main ones alone.")] = False,
) -> None:
    """The paper's tables, from your own runs."""
    sys.stdout.write(render_tables(runs, name, format, every=all))


def render_tables(runs: Sequence[str], name: str | None = None, format: str = "text", *, every: bool = False) -> str:
    """One table by name, or every table that the runs can fill, ready to print; as text the main ones by default."""
    from loopscope.studies import TABLES, find, open_records

    _check_format(format, FORMATS)
    studies = list(TABLES.values()) if name is None else [find(name, TABLES)]
    records = open_records(list(runs))
    results = [study.table(records) for study in studies]
    if not records.updates and not (records.logs and name == "training"):
        raise LoopscopeError(records.no_updates())
    if name is not None and not results[0].rows:
        reason = results[0].notes[-1] if results[0].notes else f"nothing in these runs (needs {studies[0].needs})"
        raise LoopscopeError(f"{studies[0].name}: {reason}")
    filled = [result for result in results if result.rows]
    short = name is None and format == "text" and not every
    others = [result.study for result in filled if result.study not in MAIN] if short else []
    if short:
        filled = [result for result in filled if result.study in MAIN]
    if format == "json" and name is None:
        import json

        return json.dumps([result.as_dict() for result in filled], indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    written = [getattr(result, f"to_{format}")().rstrip("\n") for result in filled]
    empty = [result.study for result in results if not result.rows]
    if others:
        written.append(f"further tables of these runs: {', '.join(others)} (--name NAME, or --all)")
    elif empty and format == "text":
        written.append(f"nothing in these runs for: {', '.join(empty)} (`loopscope studies` says what each needs)")
    return "\n\n".join(written) + "\n"


def figures(
    runs: Runs,
    output: Annotated[str, flag("--output", "Folder for the figures.", metavar="FOLDER")],
    name: Name = None,
    format: Annotated[str, flag("--format", "How figures are written.", choices=("pdf", "png", "svg"))] = "pdf",
) -> None:
    """The paper's figures, from your own runs."""
    for path in draw_figures(runs, output, name, format):
        typer.echo(path)


def draw_figures(
    runs: Sequence[str],
    output: str,
    name: str | None = None,
    format: str = "pdf",
) -> Iterator[Path]:
    """Write one figure, or all of them, into a folder; yields each file when it is written.

    Next to every figure is a JSON with its caption, the ids it shows and the hashes of what it was made from.
    """
    from loopscope.studies import FIGURES, find, open_records
    from loopscope.studies.figures.style import FIGURE_FORMATS

    _check_format(format, FIGURE_FORMATS)
    chosen = list(FIGURES.values()) if name is None else [find(name, FIGURES)]
    folder = Path(output)
    if folder.exists() and not folder.is_dir():
        raise LoopscopeError(f"{folder} is a file: give a folder for --output")
    records = open_records(list(runs))
    for study in chosen:
        result = study.figure(records)
        if name is not None and not result.shown:
            raise LoopscopeError(f"{study.name}: {result.caption}")
        if result.shown:
            yield result.save(folder / f"{study.name}.{format}")


def compare(runs: Runs, name: Name = None, format: TableFormat = "text") -> None:
    """The paper's numbers next to your runs', with a verdict; `diff` compares two of your own runs."""
    sys.stdout.write(render_comparison(runs, name, format))


def render_comparison(runs: Sequence[str], name: str | None = None, format: str = "text") -> str:
    """Every published cell with a counterpart in the runs, its difference and a verdict.

    The format `text` groups by published row; the others write one line per cell.
    """
    from loopscope.studies import TABLES, find, open_records
    from loopscope.studies.comparison import compare as join

    _check_format(format, FORMATS)
    study = None if name is None else find(name, TABLES).name
    comparison = join(open_records(list(runs)), study=study)
    if format == "text":
        return comparison.to_text() + "\n"
    written: str = getattr(comparison.table(), f"to_{format}")()
    return written


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

    typer.echo(
        write_report(
            [Path(run) for run in runs], Path(output), lens_questions=lens_questions, with_command=with_command
        )
    )


def studies() -> None:
    """The tables and figures there are."""
    sys.stdout.write(list_studies())


def list_studies() -> str:
    """Name, what it shows, what a run must hold for it, and where it is in the paper."""
    from loopscope.studies import FIGURES, TABLES

    lists = []
    for title, group in (("Tables", TABLES), ("Figures", FIGURES)):
        width = max(map(len, group))
        needs = max(len(study.needs) for study in group.values())
        summaries = max(len(study.summary) for study in group.values())
        lines = [
            f"  {study.name:<{width}}  {study.summary:<{summaries}}  {study.needs:<{needs}}  {study.paper}"
            for study in group.values()
        ]
        lists.append("\n".join([title, *lines]))
    legend = "The third column is the level of measurement (or the option of `measure`) that a study needs."
    return "\n\n".join([*lists, legend]) + "\n"


def _check_format(format: str, formats: Sequence[str]) -> None:
    if format not in formats:
        raise LoopscopeError(f"there is no format {format!r}: choose from {', '.join(formats)}")
