"""The runs that the paper's tables and figures need, from `paper_runs.toml`, and which of them are asked for."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from loopscope.errors import LoopscopeError, choice, setting
from loopscope.measuring.config import PROTOCOLS
from loopscope.studies import FIGURES, TABLES, Study, find


@dataclass(frozen=True)
class PaperRun:
    """One run of the plan.

    Attributes:
        name: its folder.
        measurement: the paper's own word for it.
        model: specification of the published checkpoint.
        tasks: evaluation sets.
        settings: what `measure` is asked for, besides model and tasks.
        studies: the tables and figures that it is for.
    """

    name: str
    measurement: str
    model: str
    tasks: tuple[str, ...]
    settings: Mapping[str, Any]
    studies: tuple[str, ...]

    def describe(self) -> str:
        """What is measured, in a line."""
        words = [f"{name.replace('_', ' ')} {value}" for name, value in self.settings.items() if value is not True]
        words += [name for name, value in self.settings.items() if value is True]
        return f"{self.model} on {', '.join(self.tasks)}: {', '.join(words)}"


@cache
def _source() -> dict[str, Any]:
    return tomllib.loads(files("loopscope.reproduction").joinpath("paper_runs.toml").read_text(encoding="utf-8"))


def paper_runs(protocol: str = "paper") -> tuple[PaperRun, ...]:
    """All runs, under a protocol of `measure`; the batches that a run names are the paper's."""
    choice("protocol", protocol, list(PROTOCOLS))
    groups = _source()["studies"]
    runs = []
    for entry in _source()["run"]:
        about = {name: entry[name] for name in ("name", "measurement", "model")}
        studies, tasks = entry["studies"], tuple(entry["tasks"])
        settings = {name: value for name, value in entry.items() if name not in (*about, "studies", "tasks")}
        if protocol != "paper":
            settings.pop("batch_size", None)
        named = tuple(groups[studies] if isinstance(studies, str) else studies)
        runs.append(PaperRun(**about, tasks=tasks, settings={"protocol": protocol, **settings}, studies=named))
    return tuple(runs)


def chosen_runs(
    runs: Sequence[PaperRun],
    only: Sequence[str] = (),
    models: Sequence[str] = (),
    tasks: Sequence[str] = (),
    *,
    updates_only: bool = False,
) -> tuple[PaperRun, ...]:
    """The runs that some studies, models and tasks need; each with the asked tasks and studies alone.

    `updates_only` leaves out the sweeps of depth: no state beyond the last update is computed.
    """
    every: dict[str, Study] = {**TABLES, **FIGURES}
    studies = {find(name, every).name for name in only}
    known_models = tuple(dict.fromkeys(run.model for run in runs))
    known_tasks = tuple(dict.fromkeys(task.partition(":")[0] for run in runs for task in run.tasks))
    for what, given, known in (("models", models, known_models), ("tasks", tasks, known_tasks)):
        if strange := next((name for name in given if name.partition(":")[0] not in known), None):
            raise LoopscopeError(f"{setting(what, strange)}: the paper has {', '.join(known)}")
    found = []
    for run in runs:
        kept = tuple(task for task in run.tasks if not tasks or {task, task.partition(":")[0]} & set(tasks))
        if updates_only:
            run = dataclasses.replace(run, settings={n: v for n, v in run.settings.items() if n != "depths"})
        if updates_only and "transitions" not in run.settings:
            continue
        asked = tuple(name for name in run.studies if not studies or name in studies)
        if kept and asked and (not models or run.model in models):
            found.append(dataclasses.replace(run, tasks=kept, studies=asked))
    if not found:
        raise LoopscopeError("no run of the paper is left: ask for fewer restrictions at a time")
    return tuple(found)
