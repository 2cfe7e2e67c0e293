"""Which rows of which tasks a pass is asked for, and what stands before each question."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loopscope.errors import LoopscopeError, setting
from loopscope.measuring.given_values import Ids, Limits, canonical
from loopscope.measuring.settings import Prompting
from loopscope.tasks.encoding import LoadedTask
from loopscope.tasks.load import load_task
from loopscope.tasks.own_task import Task
from loopscope.tasks.prompting import Chat


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
    """

    tasks: tuple[str | Task | LoadedTask, ...]
    data_dir: str | None = None
    template: str | None = None
    limit: Limits = None
    ids: Ids = None
    prompting: Prompting = field(default_factory=Prompting)

    def load(self, chat: Chat | None = None) -> list[LoadedTask]:
        """The tasks in order, each task and split once."""
        if not self.tasks:
            raise LoopscopeError(f"no task given: name one or more, e.g. {setting('tasks', 'arithmetic,gsm8k')}")
        self._refuse_strangers()
        loaded = [self._load(spec, chat) for spec in self.tasks]
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
