"""What tasks there are, by name: the generated ones and the benchmarks."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass

from loopscope.errors import LoopscopeError
from loopscope.tasks.arithmetic.task import SIZES, Arithmetic, ArithmeticChoice
from loopscope.tasks.benchmarks import BENCHMARKS, find_benchmark, squash
from loopscope.tasks.encoding import Kind, Task

_GENERATED: dict[str, tuple[Callable[[], Task], str]] = {
    "arithmetic": (Arithmetic, "word problems of two to six operations with worked solutions, made from a seed"),
    "arithmetic-mc": (ArithmeticChoice, "the same problems with four answers, the wrong ones from typical slips"),
}


@dataclass(frozen=True)
class TaskSummary:
    """One task as `loopscope tasks` lists it.

    Attributes:
        name: on the command line.
        title: as the paper writes it.
        summary: one line.
        kind: "solution" or "options".
        splits: rows of each split, the one meant when none is named first.
        subsets: rows of each named subset.
        source: the pinned hub data set, or "generated".
    """

    name: str
    title: str
    summary: str
    kind: Kind
    splits: dict[str, int]
    subsets: dict[str, int]
    source: str


def list_tasks() -> tuple[TaskSummary, ...]:
    """Every task there is."""
    generated = [
        TaskSummary(name, name, line, make().kind, {"test": SIZES["test"], **SIZES}, {}, "generated")
        for name, (make, line) in _GENERATED.items()
    ]
    benchmarks = [
        TaskSummary(
            name,
            benchmark.title,
            benchmark.summary,
            benchmark.kind,
            dict(benchmark.splits),
            {subset: chosen.rows for subset, chosen in benchmark.subsets.items()},
            str(benchmark.hub),
        )
        for name, benchmark in BENCHMARKS.items()
    ]
    return (*generated, *benchmarks)


def task_names() -> dict[str, str]:
    """Every task's name with one line about it."""
    return {task.name: task.summary for task in list_tasks()}


def is_generated(name: str) -> bool:
    """Whether a program makes the task, so that it needs no data."""
    return _generated_name(name) is not None


def get_task(name: str) -> Task:
    """The generated task of that name; benchmarks need rows and come from `load_task`."""
    found = _generated_name(name)
    if found is None:
        raise unknown_task(name)
    return _GENERATED[found][0]()


def unknown_task(name: str) -> LoopscopeError:
    """The error for a name that no task has, with the nearest ones."""
    if find_benchmark(name) is not None:
        return LoopscopeError(f"{name} is a benchmark: load it with load_task, which reads its rows")
    names = {squash(known): known for known in task_names()}
    near = [names[found] for found in difflib.get_close_matches(squash(name), names, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(near)}?" if near else f"choose one of {', '.join(names.values())}"
    return LoopscopeError(f"unknown task {name!r}: {hint} (a file of your own is named by its path, e.g. my.jsonl)")


def _generated_name(name: str) -> str | None:
    return next((known for known in _GENERATED if squash(known) == squash(name)), None)
