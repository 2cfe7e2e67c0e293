"""A call of `measure` as data: what to load, which rows, how to measure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopscope._errors import LoopscopeError, setting
from loopscope.measure.arguments import Ids, Limits, canonical
from loopscope.measure.settings import Settings
from loopscope.tasks.load import load_task
from loopscope.tasks.loaded import LoadedTask

if TYPE_CHECKING:
    from loopscope.models.protocol import LoopedModel
    from loopscope.models.tokenizer import Tokenizer


@dataclass(frozen=True)
class ModelRequest:
    """Which model and tokenizer to load, and where to.

    Attributes:
        spec: a specification of `load_model`.
        device: "cpu", "cuda", "auto".
        dtype: of weights and states; None is what `load_model` takes.
        revision: of a hub model.
        random_weights: build the model without its checkpoint.
        seed: of the random weights.
        tokenizer: another checkpoint to take the tokenizer from.
    """

    spec: str
    device: str = "auto"
    dtype: str | None = None
    revision: str | None = None
    random_weights: bool = False
    seed: int = 0
    tokenizer: str | None = None

    def load(self) -> LoopedModel:
        """The model."""
        from loopscope.models.load import load_model

        return load_model(
            self.spec,
            device=self.device,
            dtype=self.dtype,
            revision=self.revision,
            random_weights=self.random_weights,
            seed=self.seed,
        )

    def load_tokenizer(self) -> Tokenizer:
        """Its tokenizer, or the one that the user named."""
        from loopscope.models.tokenizer_source import load_tokenizer

        if self.tokenizer is not None:
            return load_tokenizer(self.tokenizer)
        return load_tokenizer(self.spec, revision=self.revision)


@dataclass(frozen=True)
class DataRequest:
    """Which rows of which tasks.

    Attributes:
        tasks: specifications of `load_task`.
        data_dir: folder with local copies of the benchmarks.
        template: a template file instead of the tasks' own.
        limit: at most so many rows, for all tasks or by a task's own name.
        ids: these source rows only, for all tasks or by a task's own name.
    """

    tasks: tuple[str, ...]
    data_dir: str | None = None
    template: str | None = None
    limit: Limits = None
    ids: Ids = None

    def load(self) -> list[LoadedTask]:
        """The tasks in order, each task and split once."""
        if not self.tasks:
            raise LoopscopeError(f"no task given: name one or more, e.g. {setting('tasks', 'arithmetic,gsm8k')}")
        self._refuse_strangers()
        loaded = [self._load(spec) for spec in self.tasks]
        seen: dict[tuple[str, str], str] = {}
        for task in loaded:
            other = seen.setdefault((task.name, task.split), task.spec)
            if other is not task.spec:
                raise LoopscopeError(
                    f"{other} and {task.spec} are rows of the same split:"
                    f" measure them into two {setting('output')} folders"
                )
        return loaded

    def limit_of(self, task: LoadedTask) -> int | None:
        """The limit that applies to a task."""
        return self._limit(task.name)

    def _limit(self, name: str) -> int | None:
        return self.limit.get(name) if isinstance(self.limit, Mapping) else self.limit

    def _load(self, spec: str) -> LoadedTask:
        name = canonical(spec)
        ids = self.ids.get(name) if isinstance(self.ids, Mapping) else self.ids
        return load_task(spec, data_dir=self.data_dir, limit=self._limit(name), ids=ids, template=self.template)

    def _refuse_strangers(self) -> None:
        known = {canonical(spec) for spec in self.tasks}
        for name, given in (("limit", self.limit), ("ids", self.ids)):
            strange = [task for task in given if task not in known] if isinstance(given, Mapping) else []
            if strange:
                raise LoopscopeError(
                    f"{setting(name)} names {strange[0]}, which is not among the tasks {', '.join(self.tasks)}"
                )


@dataclass(frozen=True)
class Request:
    """Everything that a pass is asked for."""

    model: ModelRequest
    data: DataRequest
    settings: Settings

    def as_event(self) -> dict[str, Any]:
        """What the log keeps of the call, from which `replay` finds the sources again."""
        ids = self.data.ids
        return {
            "model": self.model.spec,
            "device": self.model.device,
            "revision": self.model.revision,
            "seed": self.model.seed,
            "tokenizer": _absolute(self.model.tokenizer),
            "tasks": list(self.data.tasks),
            "data_dir": _absolute(self.data.data_dir),
            "template": _absolute(self.data.template),
            "limit": dict(self.data.limit) if isinstance(self.data.limit, Mapping) else self.data.limit,
            "ids": {name: list(rows) for name, rows in ids.items()} if isinstance(ids, Mapping) else ids,
            "folder": str(Path.cwd()),
        }


def _absolute(path: str | None) -> str | None:
    """A path that still holds in another folder; what is no path (a hub name) stays as it is."""
    return os.path.abspath(path) if path is not None and Path(path).exists() else path
