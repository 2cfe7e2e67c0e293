"""The commands: each turns flags into one call. Imports happen inside, so that `--help` does not wait for torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from loopscope.cli.app import ConfigFlag, Device, Json, Name, Runs, TableFormat, app, flag


@app.command()
def demo(
    output: Annotated[str, flag("--output", "Folder for the runs and the report.")] = "runs/demo",
    questions: Annotated[int, flag("--questions", "Questions of each task and model.")] = 0,
    progress: Annotated[str, flag("--progress", "auto, bar, plain or none.")] = "auto",
) -> None:
    """Embedded models and tasks, no network: measure, print the summary, write the report."""
    from loopscope.cli.demo import run_demo

    run_demo(Path(output), questions=questions or None, progress_style=progress)


@app.command()
def measure(
    model: Annotated[str, flag("--model", "Name, hub name, folder, `loop:MODEL:10-20`; see `loopscope models`.")],
    tasks: Annotated[str, flag("--tasks", "Tasks, comma separated; see `loopscope tasks`.")],
    output: Annotated[str, flag("--output", "Run directory; the same command resumes.")],
    transitions: Annotated[str, flag("--transitions", "Each t of an update t → t+1, e.g. 4 or 1-4.")] = "",
    depths: Annotated[str, flag("--depths", "Depths whose utility is stored, e.g. 1-8,12.")] = "",
    level: Annotated[str, flag("--level", "How much to compute: quick, grid or full.")] = "grid",
    tokens: Annotated[bool, flag("--tokens", "Store a row for every reference token.")] = False,
    paths: Annotated[bool, flag("--paths", "Store the 257 nodes of the FP64 analysis (level full).")] = False,
    limit: Annotated[str, flag("--limit", "At most so many questions: 100, or gsm8k=100,piqa=50.")] = "",
    ids: Annotated[str, flag("--ids", "Only these source rows, e.g. 0,5,10-12.")] = "",
    data_dir: Annotated[str | None, flag("--data-dir", "Folder with local copies of the benchmarks.")] = None,
    template: Annotated[str | None, flag("--template", "Template file instead of the tasks' own.")] = None,
    batch_size: Annotated[str, flag("--batch-size", "Questions in a batch, `auto` or `paper`.")] = "auto",
    device: Device = "auto",
    dtype: Annotated[
        str | None, flag("--dtype", "Dtype of weights and states; by default bfloat16 if published, else as stored.")
    ] = None,
    readout_dtype: Annotated[str, flag("--readout-dtype", "Arithmetic of the readout.")] = "float32",
    long: Annotated[str, flag("--long", "Sequences that do not fit: error, skip or truncate-left.")] = "error",
    share_context: Annotated[bool, flag("--share-context", "Run what a question's options share once.")] = False,
    unit_size: Annotated[int, flag("--unit-size", "Questions stored at a time.")] = 64,
    exit_threshold: Annotated[float | None, flag("--exit-threshold", "CDF threshold of the exit gate.")] = None,
    random_weights: Annotated[bool, flag("--random-weights", "No checkpoint: random weights, marked as such.")] = False,
    seed: Annotated[int, flag("--seed", "Seed of the random weights.")] = 0,
    tokenizer: Annotated[str | None, flag("--tokenizer", "Take the tokenizer from this model or folder.")] = None,
    revision: Annotated[str | None, flag("--revision", "Revision of a hub model.")] = None,
    engine: Annotated[str, flag("--engine", "local or ray.")] = "local",
    workers: Annotated[int | None, flag("--workers", "Model replicas of the Ray engine.")] = None,
    address: Annotated[str | None, flag("--address", "Address of an existing Ray cluster.")] = None,
    progress: Annotated[str, flag("--progress", "auto, bar, plain or none.")] = "auto",
    config: ConfigFlag = None,
) -> None:
    """Measure tasks with a looped model, into a run directory."""
    from loopscope.cli.measure import run_measure

    given = {name: value for name, value in locals().items() if name not in ("config", "run_measure")}
    run_measure(**given, command_line=["loopscope", *sys.argv[1:]])


@app.command()
def tables(runs: Runs, name: Name = None, format: TableFormat = "text") -> None:
    """The paper's tables, from your own runs."""
    from loopscope.cli.output import tables as render

    sys.stdout.write(render(runs, name, format))


@app.command()
def figures(
    runs: Runs,
    output: Annotated[str, flag("--output", "Folder for the figures.")],
    name: Name = None,
    format: Annotated[str, flag("--format", "pdf, png or svg.")] = "pdf",
) -> None:
    """The paper's figures, from your own runs."""
    from loopscope.cli.output import figures as draw

    for path in draw(runs, output, name, format):
        typer.echo(path)


@app.command()
def compare(runs: Runs, name: Name = None, format: TableFormat = "text") -> None:
    """Every published number beside the runs' own, with a verdict."""
    from loopscope.cli.output import compare as join

    sys.stdout.write(join(runs, name, format))


@app.command()
def report(
    runs: Runs,
    output: Annotated[str, flag("--output", "The HTML file.")] = "report.html",
) -> None:
    """One self-contained interactive page."""
    from loopscope.report import write_report

    typer.echo(write_report([Path(run) for run in runs], Path(output)))


@app.command()
def models(as_json: Json = False) -> None:
    """Families, sizes and revisions of the models there are."""
    from loopscope.cli.listing import list_models

    list_models(as_json=as_json)


@app.command()
def tasks(as_json: Json = False) -> None:
    """The tasks there are."""
    from loopscope.cli.listing import list_tasks

    list_tasks(as_json=as_json)


@app.command()
def studies() -> None:
    """The tables and figures there are."""
    from loopscope.cli.output import studies as listing

    sys.stdout.write(listing())


@app.command()
def bench(
    device: Annotated[str, flag("--device", "auto, cpu or cuda.")] = "auto",
    rows: Annotated[str, flag("--rows", "Only these, comma separated, e.g. geometry,memory.")] = "",
    quick: Annotated[bool, flag("--quick", "Small sizes, to see that everything runs.")] = False,
    output: Annotated[str | None, flag("--output", "JSON file.")] = None,
    tokenizer: Annotated[str | None, flag("--tokenizer", "Folder with Ouro's tokenizer, for the row pass.")] = None,
    data_dir: Annotated[str | None, flag("--data-dir", "Folder with the benchmarks, for the row pass.")] = None,
) -> None:
    """Time, memory and accuracy on this machine, each beside its reference."""
    from loopscope.cli.tools import run

    run(device=device, rows=rows, quick=quick, output=output, tokenizer=tokenizer, data_dir=data_dir)


@app.command("train-toy")
def train_toy(
    name: Annotated[str, typer.Argument(help="toy-ouro or toy-huginn.")],
    seed: Annotated[int, flag("--seed", "Seed of weights and data.")] = 0,
    device: Device = "auto",
    minutes: Annotated[float, flag("--minutes", "Minutes of training; more of them train further.")] = 8.0,
    output: Annotated[str | None, flag("--output", "Folder for the checkpoint.")] = None,
) -> None:
    """Rebuild an embedded model from nothing."""
    from loopscope.cli.tools import train_toy as train

    train(name, seed=seed, device=device, minutes=minutes, output=None if output is None else Path(output))


@app.command()
def verify(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run directory.")],
    replay: Annotated[bool, typer.Option("--replay/--no-replay", help="Measure a sample again.")] = True,
    data_dir: Annotated[str | None, flag("--data-dir", "Where the benchmarks are, if they have moved.")] = None,
    model: Annotated[str | None, flag("--model", "Where the model is, if it has moved.")] = None,
    device: Annotated[str | None, flag("--device", "Where to measure again; the run's own by default.")] = None,
    layout: Annotated[
        bool, flag("--layout", "Instead of the sample: how far numbers move when batches are cut in other ways.")
    ] = False,
) -> None:
    """Check hashes, schema and counts of a run, and measure a sample of it again."""
    from loopscope.cli.tools import show_layout_movement, verify_run

    verify_run(run, replay=replay and not layout, data_dir=data_dir, model=model, device=device)
    if layout:
        show_layout_movement(run, data_dir=data_dir, model=model, device=device)
