"""What runs a model: `loopscope measure`, `check`, `reproduce` and `lm-eval`.

The flags of `measure` are the settings of `MeasureConfig`, values read as text; `reproduce` has some of them.
"""

from __future__ import annotations

import shlex
import sys
from enum import Enum
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo

from loopscope.cli.flags import ConfigFlag, Device, ModelArgs, PlanFlag, PlanSeconds, flag, with_flags
from loopscope.errors import LoopscopeError, setting
from loopscope.measuring.config import GROUPS, MeasureConfig, choices, facts_of


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
def measure(
    *, plan: PlanFlag = False, plan_seconds: PlanSeconds = 5.0, config: ConfigFlag = None, **given: Any
) -> None:
    """Measure tasks with a looped model, into a run directory. The same command resumes."""
    from loopscope.api import configurations, measure_config, notify
    from loopscope.measuring.run import this_launch

    configured = configurations({name: value for name, value in given.items() if value is not None})
    if plan:
        from loopscope.measuring.progress import estimate

        for each in configured:
            print(estimate(each, plan_seconds))
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
    plan_seconds: PlanSeconds = 5.0,
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


def lm_eval(context: typer.Context) -> None:
    """Run lm-evaluation-harness with a looped model, at any depth, step scale or policy.

    All arguments are those of lm-eval itself (`loopscope lm-eval run --help`). `--model_args` holds pretrained=MODEL
    and any of depth, scale, chord, omega, policy, tokenizer, dtype, max_length: `--model_args
    pretrained=toy-ouro,depth=4 --tasks arc_easy`.
    """
    from loopscope.lm_eval_backend import run_harness

    run_harness(context.args)
