"""Flags: how one is declared, those that several commands share, and `--config FILE`.

Every flag can be set by `LOOPSCOPE_FLAG_NAME` or in a YAML mapping given with `--config`. Values of that file are read
as the text that stands there and checked as flags are: YAML's own reading would turn `1:30` into 90, `010` into 8 and
`true` into 1 where a number is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, TypeVar

import typer

from loopscope.errors import LoopscopeError, choice, shown
from loopscope.limits import read_text

Command = TypeVar("Command", bound=Callable[..., None])


def flag(
    name: str, help: str, *, choices: Sequence[str] | Callable[[], Iterable[str]] = (), check: bool = False, **rest: Any
) -> Any:
    """A typer option with its environment variable; its choices are shown (unless they are many) and completed.

    With `check` they are also checked before the command begins.
    """
    variable = "LOOPSCOPE_" + name.removeprefix("--").replace("-", "_").upper()
    if check and not callable(choices):
        rest["callback"] = lambda given: choice(name.removeprefix("--"), given, choices)
    if not callable(choices):
        rest = {"metavar": "|".join(choices) or None} | rest
    known = choices if callable(choices) else lambda: choices
    complete = (lambda incomplete: [each for each in known() if each.startswith(incomplete)]) if choices else None
    return typer.Option(name, help=help, envvar=variable, show_envvar=False, autocompletion=complete, **rest)


def study_names() -> list[str]:
    """All tables and figures."""
    from loopscope.studies import FIGURES, TABLES

    return [*TABLES, *FIGURES]


FORMATS = ("text", "markdown", "latex", "csv", "json")
PROGRESS = ("auto", "bar", "plain", "none")
Runs = Annotated[
    list[str], typer.Argument(metavar="RUN...", help="Run directories or folders of them.", show_default=False)
]
Name = Annotated[str | None, flag("--name", "Only this one; `loopscope studies` lists them.", choices=study_names)]
TableFormat = Annotated[str, flag("--format", "How tables are written.", choices=FORMATS, check=True)]
RunModel = Annotated[str | None, flag("--model", "The model, where the run's is code or has moved.", metavar="NAME")]
RunTasks = Annotated[str, flag("--tasks", "The run's tasks in files, as `measure` was given them.", metavar="TASK,...")]
RunTemplate = Annotated[str | None, flag("--template", "The run's template file.", metavar="FILE")]
ModelArgs = Annotated[str, flag("--model-args", "What `mine.py:build` is called with, e.g. ckpt=step900,cores=2.")]
Device = Annotated[str, flag("--device", "Where the model runs.", metavar="cpu|cuda|cuda:1|mps|auto")]
PlanFlag = Annotated[bool, flag("--plan", "Say what it would take on this machine, and stop.")]


def with_flags(parameters: list[Parameter]) -> Callable[[Command], Command]:
    """The command has these flags before those that it names itself; it takes their values by name."""

    def decorate(command: Command) -> Command:
        named = signature(command, eval_str=True)
        rest = [known for known in named.parameters.values() if known.kind is not Parameter.VAR_KEYWORD]
        command.__signature__ = Signature([*parameters, *rest])  # type: ignore[attr-defined]
        return command

    return decorate


def _load_config(context: typer.Context, path: str | None) -> str | None:
    """Flags from a YAML mapping become the command's defaults; the command line and the environment win."""
    if path is None:
        return None
    known = [parameter.name for parameter in context.command.params if parameter.name]
    context.default_map = {**(context.default_map or {}), **read_flags(path, known)}
    return path


ConfigFlag = Annotated[
    str | None,
    flag("--config", "YAML file with flags, e.g. `limit: 100`.", callback=_load_config, is_eager=True, metavar="FILE"),
]

MOST_BYTES = 1_000_000
"""The largest file of flags."""

_NOTHING = ("", "~", "null", "Null", "NULL")


def read_flags(path: str, known: Iterable[str]) -> dict[str, str]:
    """Defaults for a command: keys are flag names with `-` or `_`; an unknown key is an error that names the known."""
    import yaml

    names = set(known) - {"config"}
    try:
        # Makes text, lists and mappings of text, and nothing else.
        written = read_text(path, "--config", MOST_BYTES)
        content = yaml.load(written, yaml.BaseLoader)
    except yaml.YAMLError as error:
        raise LoopscopeError(f"--config {path} is not YAML: {' '.join(str(error).split())}") from error
    except RecursionError:
        content = []
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise _not_flags(path)
    flags = {str(key).lstrip("-").replace("-", "_"): _value(value, path) for key, value in content.items()}
    if len(flags) < len(yaml.compose(written, yaml.BaseLoader).value):
        raise LoopscopeError(f"--config {path} sets a flag twice: leave one of them out")
    for name in flags.keys() - names:
        raise LoopscopeError(
            f"--config {path} sets unknown flag {shown(name)}; known flags: {', '.join(sorted(names))}"
        )
    return {name: value for name, value in flags.items() if value not in _NOTHING}


def _value(given: Any, path: str) -> str:
    """The text of a flag: a word, a list of words, or names with words such as `limit: {gsm8k: 100}`."""
    if isinstance(given, dict):
        given = [f"{key}={_word(value, path)}" for key, value in given.items()]
    return ",".join(_word(each, path) for each in given) if isinstance(given, list) else _word(given, path)


def _word(given: Any, path: str) -> str:
    if not isinstance(given, str):
        raise _not_flags(path)
    return given


def _not_flags(path: str) -> LoopscopeError:
    return LoopscopeError(
        f"--config {path} must be a mapping of flags to values or lists of values, e.g. `limit: 100` or `depths: [1]`"
    )
