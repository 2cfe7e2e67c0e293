"""What a user calls: `measure` a model on tasks; a `Run` has the paper's tables and figures."""

from __future__ import annotations

import functools
import glob
import itertools
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar

import torch

from loopscope.errors import LoopscopeError, setting, shown, text
from loopscope.measuring.config import LongPolicy, MeasureConfig, Numbers
from loopscope.measuring.progress import SECONDS, CostEstimate, estimate
from loopscope.measuring.run import Notify, run_config, this_launch
from loopscope.models.in_memory import ModelSpec, borrowed
from loopscope.run import Run
from loopscope.store.manifest import step_order
from loopscope.store.run import is_run
from loopscope.tasks.own_task import Task

Text: TypeAlias = str | os.PathLike[str]
Tasks: TypeAlias = Text | Task | Iterable[Text | Task]
P = ParamSpec("P")
Result = TypeVar("Result")


def configured(given: Mapping[str, Any]) -> MeasureConfig:
    """The configuration that a call means: `config`, if there is one, with what else was given above it."""
    given = dict(given)
    config = given.pop("config", None)
    if config is None:
        return MeasureConfig(**given)
    if not isinstance(config, MeasureConfig):
        raise LoopscopeError(f"{setting('config', config)} is not a MeasureConfig")
    return config.but(**given) if given else config


LONGEST_NAME = 200
"""Characters of a run's folder."""


def configurations(given: Mapping[str, Any]) -> list[MeasureConfig]:
    """The configuration of each model of a text or a list; each of several has a folder of its own in the output."""
    model = given.get("model")
    listed = list(model) if isinstance(model, list | tuple) else [model]
    names = [name for each in listed for name in model_names(text("model", each))]
    if len(names) == 1:
        return [configured({**given, "model": names[0]})]
    if given.get("output") is None:
        raise LoopscopeError(f"{len(names)} models need a folder for their runs: give {setting('output')}")
    output = Path(text("output", given["output"]))
    if is_run(output):
        raise LoopscopeError(
            f"{output} is a run directory, and {len(names)} models need a folder of runs: choose another"
            f" {setting('output')}"
        )
    # Folders are the last parts of the names, or the whole of them where these are the same.
    for parts in ([PurePath(name).name for name in names], names):
        folders = [re.sub(r"[^\w.@=+-]+", "-", part).strip("-.")[:LONGEST_NAME] or "model" for part in parts]
        if len({folder.lower() for folder in folders}) == len(names):
            return [
                configured({**given, "model": name, "output": output / folder})
                for name, folder in zip(names, folders, strict=True)
            ]
    raise LoopscopeError(f"{setting('model')} names {shown(names[-1])} and another of the same name: name each once")


def model_names(given: str) -> list[str]:
    """The models that a text names, the folders of a pattern in the order of their training steps.

    >>> model_names("toy-ouro, toy-huginn")
    ['toy-ouro', 'toy-huginn']
    """
    if os.path.exists(given):
        return [given]
    names: list[str] = []
    for piece in (text("model", piece.strip()) for piece in given.split(",")):
        if re.search(r"[*?\[]", piece) is None or os.path.exists(piece):
            names.append(piece)
            continue
        folders = sorted(filter(os.path.isdir, glob.glob(os.path.expanduser(piece))), key=step_order)
        if not folders:
            raise LoopscopeError(f"no folder fits {setting('model', piece)}: name folders that exist")
        names += [path if "/" in path else f"./{path}" for path in folders]
    return names


_POSITIONAL = ("model", "tasks")


def _named(args: tuple[Any, ...], given: Mapping[str, Any]) -> dict[str, Any]:
    if len(args) > len(_POSITIONAL):
        raise TypeError(f"give settings other than {' and '.join(_POSITIONAL)} by name")
    return {**dict(zip(_POSITIONAL, args, strict=False)), **given}


def takes_settings(function: Callable[P, Result]) -> Callable[P, Result]:
    """The function is called with `config` alone, which holds all that was given: once for each model of a list."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> Any:
        given = _named(args, kwargs)
        if isinstance(given.get("model"), list | tuple):
            return [function(config=each) for each in configurations(given)]  # type: ignore[call-arg,arg-type]
        return function(config=configured(given))  # type: ignore[call-arg,arg-type]

    settings = [f"        {name}: {field.description}\n" for name, field in MeasureConfig.arguments().items()]
    called.__doc__ = f"{function.__doc__}".replace("    Raises:", "".join(["    Args:\n", *settings, "\n    Raises:"]))
    return called


@takes_settings
def measure(
    model: ModelSpec | None = None,
    tasks: Tasks | None = None,
    *,
    output: Text | None = None,
    overwrite: bool = False,
    model_args: Mapping[str, Any] | str | None = None,
    transitions: Numbers | Sequence[int | str] = (),
    depths: Numbers = (),
    level: Literal["quick", "grid", "full"] = "grid",
    tokens: bool = False,
    paths: bool = False,
    certify: bool = False,
    trace: bool = False,
    lens: int = 0,
    scales_to: float | None = None,
    protocol: str = "loopscope",
    initial_state: Literal["question", "paper", "official"] | None = None,
    limit: int | str | Mapping[str, int] | None = None,
    ids: Numbers | Mapping[str, Numbers] | None = None,
    data_dir: Text | None = None,
    template: Text | None = None,
    num_fewshot: int | None = None,
    apply_chat_template: bool = False,
    batch_size: str | int | None = None,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype | None = None,
    share_context: bool = False,
    long: LongPolicy = "error",
    tokenizer: Any = None,
    engine: Literal["local", "ray"] = "local",
    workers: int | None = None,
    config: MeasureConfig | None = None,
) -> Run:
    """Measure tasks with a looped model and return the finished run; the same call resumes an interrupted one.

    `config` holds settings made before; what else is given stands above them. A list of models, or of patterns of
    folders such as "runs/ckpt/step-*", gives a list of runs, each in a folder of its own in `output`.

    Raises:
        LoopscopeError: one line for whatever is wrong; what was measured before stays.
    """
    assert config is not None, "`takes_settings` makes one"
    return measure_config(config, notify=notify)


def notify(line: str) -> None:
    """A line on stderr."""
    print(f"loopscope: {line}", file=sys.stderr)


def measure_config(config: MeasureConfig, *, command_line: Sequence[str] = (), notify: Notify | None = None) -> Run:
    """The run of a configuration; `notify` is called with one line for whatever a user should know."""
    if config.output is None and this_launch().ranks > 1:
        raise LoopscopeError(f"the processes of a torchrun need one folder: give {setting('output')}")
    output = config.output or new_folder(config.model_spec)
    with borrowed(config.model):
        return Run(run_config(config, output, command_line, notify))


def measure_with(
    model: ModelSpec, tasks: Tasks, *, command_line: Sequence[str] = (), notify: Notify | None = None, **settings: Any
) -> Run:
    """`measure` with any field of `MeasureConfig`, for commands and tests: also those that are no arguments."""
    return measure_config(MeasureConfig(model=model, tasks=tasks, **settings), command_line=command_line, notify=notify)


def new_folder(model: str) -> str:
    """A folder under `runs/` that is not there yet, by the time and the model."""
    name = re.sub(r"[^\w.=-]+", "-", Path(model.rpartition(":")[2] or model).name).strip("-.")[:60] or "model"
    began = f"runs/{time.strftime('%Y-%m-%d-%H%M%S')}-{name}"
    again = (f"{began}-{number}" for number in itertools.count(2))
    return began if not Path(began).exists() else next(path for path in again if not Path(path).exists())


def plan(*args: Any, seconds: float = SECONDS, **settings: Any) -> CostEstimate:
    """What `measure` with the same arguments would take on this machine: questions, tokens and time.

    The model is loaded and some batches are timed for so many seconds; nothing is written.

    Raises:
        LoopscopeError: one line for whatever `measure` would refuse.
    """
    return estimate(configured(_named(args, settings)), seconds)
