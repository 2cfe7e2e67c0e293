"""What a pass loads, from its configuration: the model and its tokenizer, and the rows of its tasks."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopscope.errors import LoopscopeError, setting
from loopscope.measuring.arguments import canonical
from loopscope.measuring.config import MeasureConfig
from loopscope.measuring.protocols import PROTOCOLS
from loopscope.models.in_memory import is_factory, spec_of
from loopscope.models.initial_state import InitialState
from loopscope.models.load import load_model
from loopscope.models.tokenizer import load_tokenizer, no_tokenizer
from loopscope.models.user_models import OBJECT
from loopscope.tasks.encoding import LoadedTask
from loopscope.tasks.load import load_task
from loopscope.tasks.prompting import Chat

if TYPE_CHECKING:
    from loopscope.models.protocol import LoopedModel
    from loopscope.models.tokenizer import Tokenizer


def in_memory(config: MeasureConfig) -> Any:
    """The model in memory, or the function that makes one; None where the model is named."""
    return None if isinstance(config.model, str) else config.model


def model_spec(config: MeasureConfig) -> str:
    """The model's name; of a model in memory, what the run records."""
    return config.model if isinstance(config.model, str) else spec_of(config.model)


def device_of(config: MeasureConfig) -> str:
    """The device; a model in memory stays where it is unless another one is named."""
    given = in_memory(config)
    stays = config.device == "auto" and not is_factory(given) and hasattr(given, "device")
    return str(given.device) if stays else config.device


def load_configured_model(config: MeasureConfig) -> LoopedModel:
    """The model, with the initial state that was asked for."""
    model = load_model(
        config.model,
        model_args=config.model_args,
        device=device_of(config),
        dtype=config.dtype,
        allow_code=config.allow_code,
    )
    _choose_state(model, config)
    return model


def _choose_state(model: LoopedModel, config: MeasureConfig) -> None:
    drawn = getattr(model, "initial_state", None)
    if not isinstance(drawn, InitialState):
        for name in ("initial_state", "initial_seed"):
            if getattr(config, name) is not None:
                raise LoopscopeError(
                    f"{model.name} draws no initial state: leave out {setting(name, getattr(config, name))}"
                )
        return
    chosen = config.model_args.get("initial_state")
    if chosen is not None and config.initial_state not in (None, chosen):
        raise LoopscopeError(
            f"{model_spec(config)} chooses initial_state={chosen}:"
            f" leave out {setting('initial_state', config.initial_state)}"
        )
    rule = config.initial_state or PROTOCOLS[config.protocol].initial_state
    if chosen is None and rule is not None:
        drawn = dataclasses.replace(drawn, rule=rule)
    if config.initial_seed is not None:
        drawn = dataclasses.replace(drawn, seed=config.initial_seed)
    model.initial_state = drawn  # type: ignore[attr-defined]


def load_configured_tokenizer(config: MeasureConfig, model: object = None) -> Tokenizer | None:
    """The one that the user gave; none for token ids; the model's own, as an attribute or by its name."""
    if config.tokenizer is not None:
        return load_tokenizer(config.tokenizer)
    if not config.needs_tokenizer:
        return None
    attached = getattr(model, "tokenizer", None)
    if attached is not None:
        return load_tokenizer(attached)
    if in_memory(config) is None:
        return load_tokenizer(config.model)
    checkpoint = getattr(getattr(model, "card", None), "checkpoint", None)
    if checkpoint is None:
        raise LoopscopeError(no_tokenizer(getattr(model, "name", None) or model_spec(config).removeprefix(OBJECT)))
    return load_tokenizer(checkpoint)


def load_tasks(config: MeasureConfig, chat: Chat | None = None) -> list[LoadedTask]:
    """The tasks in order, each task and split once."""
    if not config.tasks:
        raise LoopscopeError(f"no task given: name one or more, e.g. {setting('tasks', 'arithmetic,gsm8k')}")
    _refuse_unknown_names(config)
    seen: dict[tuple[str, str], LoadedTask] = {}
    for task in [_sampled(_load(task, config, chat), config) for task in config.tasks]:
        other = seen.setdefault((task.name, task.split), task)
        if other is not task:
            raise LoopscopeError(
                f"{other.spec} and {task.spec} are rows of the same split:"
                f" measure them into two {setting('output')} folders"
            )
    return list(seen.values())


def limit_of(config: MeasureConfig, name: str) -> int | None:
    """The limit that applies to a task of this name."""
    return config.limit.get(name) if isinstance(config.limit, Mapping) else config.limit


def _load(task: Any, config: MeasureConfig, chat: Chat | None) -> LoadedTask:
    if isinstance(task, LoadedTask):
        return task
    name = canonical(task)
    return load_task(
        task,
        data_dir=config.data_dir,
        limit=limit_of(config, name),
        ids=config.ids.get(name) if isinstance(config.ids, Mapping) else config.ids,
        template=config.template,
        num_fewshot=config.num_fewshot,
        fewshot_split=config.fewshot_split,
        fewshot_seed=config.fewshot_seed,
        chat=chat,
    )


def _sampled(task: LoadedTask, config: MeasureConfig) -> LoadedTask:
    if config.sample is None:
        return task
    wanted = config.sample[task.name, task.split]
    return dataclasses.replace(task, rows=tuple(row for row in task.rows if row.source_row in wanted))


def _refuse_unknown_names(config: MeasureConfig) -> None:
    known = {canonical(task) for task in config.tasks}
    for name in ("limit", "ids"):
        given = getattr(config, name)
        unknown = [task for task in given if task not in known] if isinstance(given, Mapping) else []
        if unknown:
            listed = ", ".join(task if isinstance(task, str) else task.name for task in config.tasks)
            raise LoopscopeError(f"{setting(name)} names {unknown[0]}, which is not among the tasks {listed}")


def call_event(config: MeasureConfig) -> dict[str, Any]:
    """What the log keeps of the call: its arguments, from which a run's sources are found again.

    `model_args` stand in the manifest; rows given in Python are in the run itself.
    """
    found = {name: getattr(config, name) for name in config.arguments() if name != "model_args"}
    found |= {name: absolute(found[name]) for name in ("data_dir", "template", "tokenizer")}
    found |= {"model": model_spec(config), "device": device_of(config), "folder": str(Path.cwd())}
    found["tasks"] = [task if isinstance(task, str) else {"given": task.name} for task in config.tasks]
    for name in ("limit", "ids"):
        if isinstance(found[name], Mapping):
            found[name] = dict(found[name])
    return found


def absolute(given: Any) -> Any:
    """A path that still holds in another folder; a hub name stays as it is; an object by its source."""
    if given is None:
        return None
    if not isinstance(given, str):
        return {"given": given.source}
    return os.path.abspath(given) if Path(given).exists() else given
