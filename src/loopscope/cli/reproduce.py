"""`loopscope reproduce`: the paper's runs, tables and figures next to its numbers; `--plan` says what that takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from loopscope.cli.flags import ConfigFlag, PlanFlag, PlanSeconds, flag, with_flags
from loopscope.cli.measure import notify, settings_flags
from loopscope.errors import LoopscopeError, setting
from loopscope.measuring.config import MeasureConfig

SETTINGS = ("limit", "data_dir", "tokenizer", "long", "device", "engine", "workers", "progress")
"""The settings of `measure` that hold for every run."""


@with_flags([known for known in settings_flags(MeasureConfig) if known.name in SETTINGS])
def reproduce(
    *,
    output: Annotated[str, flag("--output", "Folder for everything; the same command resumes.")],
    plan: PlanFlag = False,
    plan_seconds: PlanSeconds = 5.0,
    verify: Annotated[
        bool, flag("--verify", "Compute every run a second time, bit for bit: replay and batch claims need it.")
    ] = False,
    protocol: Annotated[str, flag("--protocol", "paper or loopscope, as in `loopscope measure`.")] = "paper",
    only: Annotated[str, flag("--only", "Tables and figures, comma separated; see `loopscope studies`.")] = "",
    models: Annotated[str, flag("--models", "Models of the paper: ouro-1.4b, ouro-2.6b, huginn-0125.")] = "",
    tasks: Annotated[str, flag("--tasks", "Tasks of the paper, e.g. gsm8k,hellaswag.")] = "",
    updates_only: Annotated[bool, flag("--updates-only", "Leave out the sweeps of depth.")] = False,
    checkpoints: Annotated[str, flag("--checkpoints", "Copies of models: ouro-1.4b=FOLDER,huginn-0125=FOLDER.")] = "",
    random_weights: Annotated[bool, flag("--random-weights", "Rehearse it without any checkpoint.")] = False,
    stand_ins: Annotated[bool, flag("--stand-ins", "Generated questions as long as the benchmarks'.")] = False,
    config: ConfigFlag = None,
    **given: Any,
) -> None:
    """The paper in one command: every run, then tables, figures, the comparison and the page."""
    from loopscope.errors import text
    from loopscope.reproduction.paper_runs import chosen_runs, paper_runs
    from loopscope.reproduction.reproduce import Reproduction, plan_of_all, plan_of_run
    from loopscope.reproduction.stand_ins import stand_in_options

    output = text("output", output)
    runs = chosen_runs(paper_runs(protocol), _words(only), _words(models), _words(tasks), updates_only=updates_only)
    options = {name: value for name, value in given.items() if value is not None}
    if random_weights:
        options["model_args"] = {"random_weights": True}
    if stand_ins:
        options = stand_in_options(Path(output) / "stand-ins", [task for run in runs for task in run.tasks], options)
    work = Reproduction(runs, Path(output), options, _pairs(checkpoints), notify)
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
    found = {}
    for entry in _words(given):
        name, equals, place = entry.partition("=")
        if not equals or not name or not place:
            raise LoopscopeError(f"{setting('checkpoints', given)}: write MODEL=FOLDER, separated by commas")
        found[name] = place
    return found
