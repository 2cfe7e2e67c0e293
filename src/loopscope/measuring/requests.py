"""What a pass loads: which model and tokenizer and where to, which rows of which tasks."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopscope.errors import LoopscopeError, setting, text
from loopscope.measuring.given_values import Ids, Limits, canonical
from loopscope.measuring.settings import Prompting
from loopscope.models.in_memory import ModelSpec, is_factory, spec_of
from loopscope.models.initial_state import InitialState, Rule
from loopscope.models.user_models import OBJECT
from loopscope.tasks.encoding import LoadedTask
from loopscope.tasks.load import load_task
from loopscope.tasks.own_task import Task
from loopscope.tasks.prompting import Chat

if TYPE_CHECKING:
    from loopscope.models.protocol import LoopedModel
    from loopscope.models.tokenizer import Tokenizer


@dataclass(frozen=True)
class ModelRequest:
    """Which model and tokenizer to load, and where to.

    Attributes:
        spec: a specification of `load_model`; of a model in memory, what the run records.
        device: "cpu", "cuda", "auto".
        dtype: of weights and states; None is what `load_model` takes.
        revision: of a hub model.
        random_weights: build the model without its checkpoint.
        seed: of the random weights.
        tokenizer: another checkpoint or a file to take the tokenizer from, or a tokenizer.
        needs_tokenizer: whether there are texts to encode; token ids need none.
        given: a model in memory, or a function that makes one; None where `spec` names the model.
        args: what a factory of the user's own is called with.
        initial_state: the rule by which H_0 is drawn, refused where the model draws none or was given another.
        default_state: the rule where neither this nor the specification says; None is the model's own.
        initial_seed: what H_0 is drawn from, refused where the model draws none; None is the model's own.
        allow_code: whether `spec` may name code; not where it comes from a run directory.
    """

    spec: str
    device: str = "auto"
    dtype: str | None = None
    revision: str | None = None
    random_weights: bool = False
    seed: int = 0
    tokenizer: str | Tokenizer | None = None
    needs_tokenizer: bool = True
    given: Any = None
    args: Mapping[str, Any] = field(default_factory=dict)
    initial_state: Rule | None = None
    default_state: Rule | None = None
    initial_seed: int | None = None
    allow_code: bool = True

    @classmethod
    def of(cls, model: ModelSpec, device: str = "auto", dtype: str | None = None, **more: Any) -> ModelRequest:
        """From a specification, or from a model in memory, which stays where it is unless `device` says otherwise."""
        if isinstance(model, str | os.PathLike):
            return cls(text("model", model), device, dtype, **more)
        if device == "auto" and not is_factory(model) and hasattr(model, "device"):
            device = str(model.device)
        return cls(spec_of(model), device, dtype, **more, given=model)

    def load(self) -> LoopedModel:
        """The model."""
        from loopscope.models.load import load_model

        drawn = {"random_weights": True, "seed": self.seed} if self.random_weights else {}
        model = load_model(
            self._name if self.given is None else self.given,
            model_args={**self.args, **drawn},
            device=self.device,
            dtype=self.dtype,
            allow_code=self.allow_code,
        )
        self._choose_state(model)
        return model

    @property
    def _name(self) -> str:
        return self.spec if self.revision is None else f"{self.spec}@{self.revision}"

    def _choose_state(self, model: LoopedModel) -> None:
        drawn = getattr(model, "initial_state", None)
        chosen = self.args.get("initial_state")
        if not isinstance(drawn, InitialState):
            for name in ("initial_state", "initial_seed"):
                if getattr(self, name) is not None:
                    left = setting(name, getattr(self, name))
                    raise LoopscopeError(f"{model.name} draws no initial state: leave out {left}")
            return
        if chosen is not None and self.initial_state not in (None, chosen):
            raise LoopscopeError(
                f"{self.spec} chooses initial_state={chosen}: leave out {setting('initial_state', self.initial_state)}"
            )
        rule = self.initial_state or self.default_state
        if chosen is None and rule is not None:
            drawn = dataclasses.replace(drawn, rule=rule)
        if self.initial_seed is not None:
            drawn = dataclasses.replace(drawn, seed=self.initial_seed)
        model.initial_state = drawn  # type: ignore[attr-defined]

    def load_tokenizer(self, model: object = None) -> Tokenizer | None:
        """The one that the user gave; none for token ids; the model's own, as an attribute or by its name."""
        from loopscope.models.tokenizer import load_tokenizer, no_tokenizer

        if self.tokenizer is not None:
            return load_tokenizer(self.tokenizer)
        if not self.needs_tokenizer:
            return None
        own = getattr(model, "tokenizer", None)
        if own is not None:
            return load_tokenizer(own)
        if self.given is None:
            return load_tokenizer(self._name)
        checkpoint = getattr(getattr(model, "card", None), "checkpoint", None)
        if checkpoint is None:
            raise LoopscopeError(no_tokenizer(getattr(model, "name", None) or self.spec.removeprefix(OBJECT)))
        return load_tokenizer(checkpoint)


@dataclass(frozen=True)
class DataRequest:
    """Which rows of which tasks.

    Attributes:
        tasks: specifications of `load_task`, tasks made in Python, or tasks that are loaded already.
        data_dir: folder with local copies of the benchmarks.
        template: a template file instead of the tasks' own.
        limit: the most rows, for all tasks or by a task's own name.
        ids: these source rows only, for all tasks or by a task's own name.
        prompting: few-shot examples and chat template.
        sample: of these, the source rows that are kept once everything is loaded, by task and split; None keeps all.
    """

    tasks: tuple[str | Task | LoadedTask, ...]
    data_dir: str | None = None
    template: str | None = None
    limit: Limits = None
    ids: Ids = None
    prompting: Prompting = field(default_factory=Prompting)
    sample: Mapping[tuple[str, str], Collection[int]] | None = None

    def load(self, chat: Chat | None = None) -> list[LoadedTask]:
        """The tasks in order, each task and split once."""
        if not self.tasks:
            raise LoopscopeError(f"no task given: name one or more, e.g. {setting('tasks', 'arithmetic,gsm8k')}")
        self._refuse_strangers()
        loaded = [self._sampled(self._load(spec, chat)) for spec in self.tasks]
        seen: dict[tuple[str, str], LoadedTask] = {}
        for task in loaded:
            other = seen.setdefault((task.name, task.split), task)
            if other is not task:
                raise LoopscopeError(
                    f"{other.spec} and {task.spec} are rows of the same split:"
                    f" measure them into two {setting('output')} folders"
                )
        return loaded

    def limit_of(self, task: LoadedTask) -> int | None:
        """The limit that applies to a task."""
        return self._limit(task.name)

    def as_event(self) -> dict[str, Any]:
        """What the log keeps of it; rows given in Python are in the run itself."""
        ids = self.ids
        return {
            "tasks": [spec if isinstance(spec, str) else {"given": spec.name} for spec in self.tasks],
            "data_dir": absolute(self.data_dir),
            "template": absolute(self.template),
            "limit": dict(self.limit) if isinstance(self.limit, Mapping) else self.limit,
            "ids": {name: list(rows) for name, rows in ids.items()} if isinstance(ids, Mapping) else ids,
        }

    def _limit(self, name: str) -> int | None:
        return self.limit.get(name) if isinstance(self.limit, Mapping) else self.limit

    def _load(self, spec: str | Task | LoadedTask, chat: Chat | None) -> LoadedTask:
        if isinstance(spec, LoadedTask):
            return spec
        name = canonical(spec)
        ids = self.ids.get(name) if isinstance(self.ids, Mapping) else self.ids
        prompting = self.prompting
        return load_task(
            spec,
            data_dir=self.data_dir,
            limit=self._limit(name),
            ids=ids,
            template=self.template,
            num_fewshot=prompting.num_fewshot,
            fewshot_split=prompting.fewshot_split,
            fewshot_seed=prompting.fewshot_seed,
            chat=chat,
        )

    def _sampled(self, task: LoadedTask) -> LoadedTask:
        if self.sample is None:
            return task
        wanted = self.sample[task.name, task.split]
        return dataclasses.replace(task, rows=tuple(row for row in task.rows if row.source_row in wanted))

    def _refuse_strangers(self) -> None:
        known = {canonical(spec) for spec in self.tasks}
        for name, given in (("limit", self.limit), ("ids", self.ids)):
            strange = [task for task in given if task not in known] if isinstance(given, Mapping) else []
            if strange:
                listed = ", ".join(spec if isinstance(spec, str) else spec.name for spec in self.tasks)
                raise LoopscopeError(f"{setting(name)} names {strange[0]}, which is not among the tasks {listed}")


@dataclass(frozen=True)
class SharedData(DataRequest):
    """The same rows for several models: read and worded once, or once for every chat template."""

    loaded: dict[str, list[LoadedTask]] = field(default_factory=dict)

    def load(self, chat: Chat | None = None) -> list[LoadedTask]:
        """The tasks in order, as they were loaded before."""
        key = "" if chat is None else chat.sha256
        if key not in self.loaded:
            self.loaded[key] = super().load(chat)
        return self.loaded[key]


def absolute(path: str | None) -> str | None:
    """A path that still holds in another folder; what is no path (a hub name) stays as it is."""
    return os.path.abspath(path) if path is not None and Path(path).exists() else path
