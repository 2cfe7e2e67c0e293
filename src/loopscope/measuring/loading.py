"""What a configuration names, loaded: models, the tokenizer, the rows of tasks; and what a run must know of a model."""

from __future__ import annotations

import dataclasses
import glob
import os
import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import torch

from loopscope.errors import LoopscopeError, setting, shown, text
from loopscope.measuring.arguments import canonical
from loopscope.measuring.config import MeasureConfig
from loopscope.models.families.config import FamilyConfig
from loopscope.models.in_memory import is_factory, model_identity, spec_of
from loopscope.models.initial_state import InitialState, Rule
from loopscope.models.layers.attention import runs_unpadded
from loopscope.models.load import card_of, load_model
from loopscope.models.tokenizer import load_tokenizer, no_tokenizer
from loopscope.models.user_models import OBJECT
from loopscope.store.manifest import ModelInfo
from loopscope.store.run import is_run
from loopscope.tasks.encoding import LoadedTask
from loopscope.tasks.load import load_task
from loopscope.tasks.prompting import Chat
from loopscope.training_steps import step_order

if TYPE_CHECKING:
    from loopscope.models.protocol import LoopedModel
    from loopscope.models.tokenizer import Tokenizer

LONGEST_NAME = 200
"""Characters of a run's folder."""


def configurations(
    given: Mapping[str, Any], make: Callable[[dict[str, Any]], MeasureConfig] = lambda given: MeasureConfig(**given)
) -> list[MeasureConfig]:
    """The configuration of each model of a text or a list; each of several has a folder of its own in the output."""
    model = given.get("model")
    listed = list(model) if isinstance(model, list | tuple) else [model]
    names = [name for each in listed for name in model_names(text("model", each))]
    if len(names) == 1:
        return [make({**given, "model": names[0]})]
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
                make({**given, "model": name, "output": output / folder})
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
    how: Any = {"dtype": config.dtype, "allow_code": config.allow_code}
    model = load_model(config.model, model_args=config.model_args, device=device_of(config), **how)
    drawn = getattr(model, "initial_state", None)
    if not isinstance(drawn, InitialState):
        for name in ("initial_state", "initial_seed"):
            if (value := getattr(config, name)) is not None:
                raise LoopscopeError(f"{model.name} draws no initial state: leave out {setting(name, value)}")
        return model
    chosen = config.model_args.get("initial_state")
    if chosen is not None and config.initial_state not in (None, chosen):
        raise LoopscopeError(
            f"{model_spec(config)} chooses initial_state={chosen}:"
            f" leave out {setting('initial_state', config.initial_state)}"
        )
    rule = config.initial_state or ("paper" if config.protocol == "paper" else None)
    if chosen is None and rule is not None:
        drawn = dataclasses.replace(drawn, rule=rule)
    if config.initial_seed is not None:
        drawn = dataclasses.replace(drawn, seed=config.initial_seed)
    model.initial_state = drawn  # type: ignore[attr-defined]
    return model


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


@dataclass(frozen=True)
class ModelFacts:
    """A loaded model without its weights, as a run that measures it in another process must know it.

    Attributes:
        info: what the manifest says of it.
        vocabulary_size: token ids that it can embed.
        max_positions: the longest sequence, if there is a limit.
        device_type: "cpu", "cuda".
        device_name: the device as its maker calls it.
        seeds: of what is drawn at random, by name: random weights, an initial state.
        shares_context: whether it runs options that share a row.
        trained_clock: steps after which a step that knows its time leaves what it was trained for; else None.
        args: what its factory was called with.
        initial_state: the rule by which H_0 is drawn, if it is.
        unpadded: whether it runs all sequences of a batch in one row, without padding.
    """

    info: ModelInfo
    vocabulary_size: int
    max_positions: int | None
    device_type: str
    device_name: str
    seeds: dict[str, int]
    shares_context: bool
    trained_clock: int | None
    args: Mapping[str, Any]
    initial_state: Rule | None
    unpadded: bool

    def settled(self, config: MeasureConfig) -> MeasureConfig:
        """The settings with the updates that are meant where none are named, and with batches that suit the model."""
        return config.beyond(self.info.trained_depth, self.info.name).on(self.device_type, unpadded=self.unpadded)


def facts_of(model: LoopedModel) -> ModelFacts:
    """The facts of a model that `load_model` returned."""
    card, config, device = card_of(model), getattr(model, "config", None), model.device
    drawn = getattr(model, "initial_state", None)
    drawn = drawn if isinstance(drawn, InitialState) else None
    # The hashes of the files that the weights were read from; of the model in memory where there are none.
    weights = {name: digest for name, digest in card.sha256.items() if name.endswith(".safetensors")}
    same = ("spec", "name", "family", "revision", "dtype", "boundary", "trained_depth")
    info = ModelInfo(
        **{name: getattr(card, name) for name in same},
        weights=weights if weights or card.random else model_identity(model),
        config_sha256=card.sha256.get("config.json"),
        affine_readout=model.head is not None,
        design=config.design if isinstance(config, FamilyConfig) else {},
        random_weights=card.random,
        toy=card.kind == "embedded",
    )
    seeds = {} if drawn is None else {"initial_state": drawn.seed}
    seeds |= {"random_weights": card.seed} if card.random and card.seed is not None else {}
    on_gpu = device.type == "cuda"
    return ModelFacts(
        info,
        vocabulary_size=model.vocabulary_size,
        max_positions=getattr(model, "max_positions", None),
        device_type=device.type,
        device_name=torch.cuda.get_device_name(device) if on_gpu else f"{device.type} ({platform.machine()})",
        seeds=seeds,
        shares_context=bool(getattr(model, "shares_context", False)),
        trained_clock=card.trained_clock,
        args=card.args,
        initial_state=None if drawn is None else drawn.rule,
        unpadded=runs_unpadded(model),
    )


def load_tasks(config: MeasureConfig, chat: Chat | None = None) -> list[LoadedTask]:
    """The tasks in order, each task and split once."""
    if not config.tasks:
        raise LoopscopeError(f"no task given: name one or more, e.g. {setting('tasks', 'arithmetic,gsm8k')}")
    known = {canonical(task) for task in config.tasks}
    for name in ("limit", "ids"):
        given = getattr(config, name)
        unknown = [task for task in given if task not in known] if isinstance(given, Mapping) else []
        if unknown:
            listed = ", ".join(task if isinstance(task, str) else task.name for task in config.tasks)
            raise LoopscopeError(f"{setting(name)} names {unknown[0]}, which is not among the tasks {listed}")
    seen: dict[tuple[str, str], LoadedTask] = {}
    for task in [_load(task, config, chat) for task in config.tasks]:
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


def _load(given: Any, config: MeasureConfig, chat: Chat | None) -> LoadedTask:
    task: LoadedTask = given
    if not isinstance(given, LoadedTask):
        name = canonical(given)
        ids = config.ids.get(name) if isinstance(config.ids, Mapping) else config.ids
        same = ("data_dir", "template", "num_fewshot", "fewshot_split", "fewshot_seed")
        settings = {name: getattr(config, name) for name in same}
        task = load_task(given, limit=limit_of(config, name), ids=ids, chat=chat, **settings)
    if config.sample is None:
        return task
    wanted = config.sample[task.name, task.split]
    return dataclasses.replace(task, rows=tuple(row for row in task.rows if row.source_row in wanted))
