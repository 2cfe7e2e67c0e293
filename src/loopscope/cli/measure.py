"""`loopscope measure`: its flags are the settings of `MeasureConfig`, values read as text."""

from __future__ import annotations

import shlex
import sys
from enum import Enum
from inspect import Parameter
from typing import Annotated, Any

from pydantic.fields import FieldInfo

from loopscope.cli.flags import ConfigFlag, PlanFlag, PlanSeconds, flag, with_flags
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
    from loopscope.api import configurations, measure_config
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


def notify(line: str) -> None:
    """A line on stderr."""
    print(f"loopscope: {line}", file=sys.stderr)
