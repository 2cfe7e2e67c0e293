"""What runs a model: `loopscope demo`, `measure`, `check`, `reproduce` and `lm-eval`.

The flags of `measure` are the settings of `MeasureConfig`, values read as text; `reproduce` has some of them.
"""

from __future__ import annotations

import shlex
import sys
import textwrap
import time
from enum import Enum
from importlib.util import find_spec
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic.fields import FieldInfo

from loopscope.cli.flags import PROGRESS, ConfigFlag, Device, ModelArgs, PlanFlag, flag, with_flags
from loopscope.errors import LoopscopeError, setting
from loopscope.measuring.config import GROUPS, MeasureConfig, choices, facts_of

if TYPE_CHECKING:
    from loopscope.store import StoredRun


def settings_flags(model: type[MeasureConfig]) -> list[Parameter]:
    """A flag for every setting of a configuration, by group."""
    return [_parameter(name, field) for group in GROUPS for name, field in model.fields_of(group).items()]


def _parameter(name: str, field: FieldInfo) -> Parameter:
    facts, words, switch = facts_of(field), choices(field), field.annotation is bool
    usual = field.default.value if isinstance(field.default, Enum) else field.default
    option = flag(
        f"--{name.replace('_', '-')}",
        f"{field.description} [{usual}]" if usual and isinstance(usual, str) else str(field.description),
        choices=words,
        rich_help_panel=facts["group"],
        **({} if switch or words else {"metavar": facts["metavar"]}),
        show_default=False,
    )
    default = Parameter.empty if field.is_required() else False if switch else None
    return Parameter(
        name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[bool if switch else str, option]
    )


@with_flags(settings_flags(MeasureConfig))
def measure(*, plan: PlanFlag = False, config: ConfigFlag = None, **given: Any) -> None:
    """Measure tasks with a looped model, into a run directory. The same command resumes."""
    from loopscope.api import configurations, measure_config, notify
    from loopscope.measuring.run import this_launch

    configured = configurations({name: value for name, value in given.items() if value is not None})
    if plan:
        from loopscope.measuring.progress import estimate

        for each in configured:
            print(estimate(each))
        return
    for number, each in enumerate(configured, 1):
        if len(configured) > 1:
            notify(f"model {number} of {len(configured)}: {each.model}")
        run = measure_config(each, command_line=["loopscope", *sys.argv[1:]], notify=notify)
        if this_launch().rank:
            continue
        where = shlex.quote(str(run.path))
        following = f"loopscope tables {where} | loopscope report {where}"
        if not run.manifest.transitions:
            following = f"loopscope figures {where} --name depth-curves"
        print(f"{run.summary()}\n{where}. Next: {following}")


def check(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="As `loopscope measure --model`, e.g. mine.py:build.")],
    model_args: ModelArgs = "",
    device: Device = "auto",
    dtype: Annotated[str | None, flag("--dtype", "Dtype of weights and states.")] = None,
) -> None:
    """Try a model on a small batch: shapes, determinism, padding, readout, float64, gradients, derivatives."""
    from loopscope.measuring.model_check import check as run_check

    found = run_check(model, model_args=model_args, device=device, dtype=dtype)
    print(found)
    if not found.passed:
        raise LoopscopeError(f"{found.model} would give wrong numbers: see the remedies above")


SETTINGS = ("limit", "data_dir", "tokenizer", "long", "device", "engine", "workers", "progress")
"""The settings of `measure` that hold for every run."""


@with_flags([known for known in settings_flags(MeasureConfig) if known.name in SETTINGS])
def reproduce(
    *,
    output: Annotated[str, flag("--output", "Folder for everything; the same command resumes.")],
    plan: PlanFlag = False,
    verify: Annotated[
        bool, flag("--verify", "Compute every run a second time, bit for bit: replay and batch claims need it.")
    ] = False,
    protocol: Annotated[str, flag("--protocol", "paper or loopscope, as in `loopscope measure`.")] = "paper",
    only: Annotated[str, flag("--only", "Tables and figures, comma separated; see `loopscope studies`.")] = "",
    models: Annotated[str, flag("--models", "Models of the paper: ouro-1.4b, ouro-2.6b, huginn-0125.")] = "",
    tasks: Annotated[str, flag("--tasks", "Tasks of the paper, e.g. gsm8k,hellaswag.")] = "",
    updates_only: Annotated[bool, flag("--updates-only", "Leave out the sweeps of depth.")] = False,
    checkpoints: Annotated[str, flag("--checkpoints", "Copies of models: ouro-1.4b=FOLDER[@sha256:HEX],…")] = "",
    random_weights: Annotated[bool, flag("--random-weights", "Rehearse it without any checkpoint.")] = False,
    stand_ins: Annotated[bool, flag("--stand-ins", "Generated questions as long as the benchmarks'.")] = False,
    config: ConfigFlag = None,
    **given: Any,
) -> None:
    """The paper in one command: every run, then tables, figures, the comparison and the page."""
    from loopscope.api import notify
    from loopscope.errors import text
    from loopscope.reproduction.reproduce import Reproduction, chosen_runs, paper_runs, plan_of_all, plan_of_run
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
        for run, cost in work.estimates():
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


def lm_eval(context: typer.Context) -> None:
    """Run lm-evaluation-harness with a looped model, at any depth, step scale or policy.

    All arguments are those of lm-eval itself (`loopscope lm-eval run --help`). `--model_args` holds pretrained=MODEL
    and any of depth, scale, chord, omega, policy, tokenizer, dtype, max_length: `--model_args
    pretrained=toy-ouro,depth=4 --tasks arc_easy`.
    """
    from loopscope.lm_eval_backend import run_harness

    run_harness(context.args)


DEMO: tuple[dict[str, Any], ...] = (
    {"model": "toy-ouro", "tasks": "stories", "transitions": "4-5", "depths": "1-6", "limit": 16, "tokens": True},
    {"model": "toy-ouro", "model_args": "inside=3", "tasks": "stories", "transitions": 3, "depths": "1-5", "limit": 12},
    {"model": "toy-huginn", "tasks": "stories", "transitions": 3, "depths": "1-6", "limit": 12},
    {"model": "toy-ouro", "tasks": "arithmetic", "transitions": 4, "depths": "1-6", "limit": 24, "tokens": True},
)
"""The settings of the demo's runs, around the trained depths; the first is the one that the finding is about."""


def demo(
    output: Annotated[str, flag("--output", "Folder for the runs and the report.", metavar="FOLDER")] = "runs/demo",
    questions: Annotated[
        int | None, flag("--questions", "Questions of each task and model.", metavar="N", min=1, show_default=False)
    ] = None,
    everything: Annotated[bool, flag("--all", "Also a nonlinear readout, a second model and a second task.")] = False,
    progress: Annotated[str, flag("--progress", "How progress is shown.", choices=PROGRESS)] = "auto",
) -> None:
    """Measure an embedded model on texts it never saw, say what was found, and write the report; no network."""
    from loopscope.studies.runs import first_finding, run_lines

    folder, began = Path(output), time.monotonic()
    print("toy-ouro, a small looped model that ships with loopscope, on texts it never saw (float32):", flush=True)
    runs = [_demo_run(DEMO[0], folder, questions, progress)]
    found = first_finding(runs[0])
    print(*textwrap.wrap(f"{found.title('toy-ouro')}. {found.sentence()}", 79), sep="\n", flush=True)
    runs += [_demo_run(settings, folder, questions, progress) for settings in (DEMO[1:] if everything else ())]
    for run in runs:
        if everything:
            print(f"\n{run.path.name}")
        print(*run_lines(run)[1:], sep="\n", flush=True)
    from loopscope.report import write_report

    page = write_report([run.path for run in runs], folder / "report.html")
    print(f"report: {page} (open it in a browser; it loads nothing from the network)")
    if find_spec("matplotlib") is None:
        print("without the paper's figures: pip install '.[studies]' in loopscope's folder adds them")
    more = "" if everything else " `loopscope demo --all` adds a nonlinear readout, a second model and a second task."
    print(f"Took {time.monotonic() - began:.0f} s.{more}")


def _demo_run(settings: dict[str, Any], folder: Path, questions: int | None, progress: Any) -> StoredRun:
    """One run per model and task, because each has its own number of questions."""
    from loopscope.api import measure_with

    names = settings["model"], settings.get("model_args", "").replace("=", "-"), settings["tasks"]
    limit, output = questions or settings["limit"], folder / "-".join(filter(None, names))
    usual = {"level": "grid", "scalar_checks": 0, "device": "cpu", "dtype": "float32", "progress": progress}
    return measure_with(**settings | usual | {"limit": limit, "output": output})
