"""`loopscope reproduce`: the paper's runs, tables and figures beside its numbers; `--plan` says what that takes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from loopscope.cli.flags import ConfigFlag, Device, flag


def reproduce(
    output: Annotated[str, flag("--output", "Folder for everything; the same command resumes.")],
    plan: Annotated[bool, flag("--plan", "Say what every run needs and would take here, and stop.")] = False,
    plan_seconds: Annotated[float, flag("--plan-seconds", "How long batches of each run are timed.")] = 5.0,
    verify: Annotated[
        bool, flag("--verify", "Compute every run a second time, bit for bit: replay and batch claims need it.")
    ] = False,
    protocol: Annotated[str, flag("--protocol", "paper or loopscope, as in `loopscope measure`.")] = "paper",
    only: Annotated[str, flag("--only", "Tables and figures, comma separated; see `loopscope studies`.")] = "",
    models: Annotated[str, flag("--models", "Models of the paper: ouro-1.4b, ouro-2.6b, huginn-0125.")] = "",
    tasks: Annotated[str, flag("--tasks", "Tasks of the paper, e.g. gsm8k,hellaswag.")] = "",
    updates_only: Annotated[bool, flag("--updates-only", "Leave out the sweeps of depth.")] = False,
    limit: Annotated[int | None, flag("--limit", "At most so many questions of each task.")] = None,
    checkpoints: Annotated[str, flag("--checkpoints", "Own copies: ouro-1.4b=FOLDER,huginn-0125=FOLDER.")] = "",
    random_weights: Annotated[bool, flag("--random-weights", "Rehearse it without any checkpoint.")] = False,
    stand_ins: Annotated[bool, flag("--stand-ins", "Generated questions as long as the benchmarks'.")] = False,
    data_dir: Annotated[str | None, flag("--data-dir", "Folder with local copies of the benchmarks.")] = None,
    tokenizer: Annotated[str | None, flag("--tokenizer", "Tokenizer for all models; for rehearsals.")] = None,
    long: Annotated[str, flag("--long", "Sequences that do not fit: error, skip or truncate-left.")] = "error",
    device: Device = "auto",
    engine: Annotated[str, flag("--engine", "local or ray.")] = "local",
    workers: Annotated[int | None, flag("--workers", "Model replicas of the Ray engine.")] = None,
    address: Annotated[str | None, flag("--address", "Address of an existing Ray cluster.")] = None,
    progress: Annotated[str, flag("--progress", "auto, bar, plain or none.")] = "auto",
    config: ConfigFlag = None,
) -> None:
    """The paper in one command: every run, then tables, figures, the comparison and the page."""
    from loopscope.reproduction.paper_runs import chosen_runs, paper_runs
    from loopscope.reproduction.reproduce import Reproduction, plan_of_all, plan_of_run
    from loopscope.reproduction.stand_ins import stand_in_options

    given = {
        "limit": limit,
        "random_weights": random_weights,
        "data_dir": data_dir,
        "tokenizer": tokenizer,
        "long": long,
        "device": device,
        "engine": engine,
        "workers": workers,
        "address": address,
        "progress_style": progress,
    }
    runs = chosen_runs(paper_runs(protocol), _words(only), _words(models), _words(tasks), updates_only=updates_only)
    options = {name: value for name, value in given.items() if value is not None}
    if stand_ins:
        options = stand_in_options(Path(output) / "stand-ins", [task for run in runs for task in run.tasks], options)
    work = Reproduction(
        runs,
        Path(output),
        options,
        _pairs(checkpoints),
        lambda line: print(f"loopscope: {line}", file=sys.stderr),
    )
    if plan:
        costs = []
        for run, cost in work.estimates(plan_seconds):
            costs.append((run, cost))
            print(plan_of_run(run, cost), end="\n\n", flush=True)
        print(plan_of_all(costs, verify=verify))
        for line in work.weights():
            print(line)
        return
    measured = work.measure()
    if verify:
        work.verify(measured)
    for path in work.write(measured):
        print(path)


def _words(given: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in given.split(",") if word.strip())


def _pairs(given: str) -> dict[str, str]:
    from loopscope.errors import LoopscopeError, setting

    found = {}
    for entry in _words(given):
        name, equals, place = entry.partition("=")
        if not equals or not name or not place:
            raise LoopscopeError(f"{setting('checkpoints', given)}: write MODEL=FOLDER, separated by commas")
        found[name] = place
    return found
