"""Depths, rows, limits, batches, tasks and scales as callers give them: checked, and turned into plain values.

Text is read as on the command line, so that `transitions="1-4"` means what `--transitions 1-4` does; a caller in Python
may also give the numbers themselves. What has two meanings is refused.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from loopscope.errors import LoopscopeError, index, parse_number, parse_ranges, setting, shown, text, whole
from loopscope.store.schema import CHORD, ends_of, parse_transitions
from loopscope.tasks.encoding import LoadedTask
from loopscope.tasks.known_tasks import find_benchmark
from loopscope.tasks.lm_eval_requests import is_lm_eval, lm_eval_name
from loopscope.tasks.own_task import Task, is_dataset
from loopscope.tasks.source_rows import LARGEST_ROW, parse_ids

DEEPEST = 10_000
"""The deepest loop that can be asked for."""
MOST_QUESTIONS = 1_000_000_000
"""The largest number of questions that a limit, a unit or a batch can name."""
MOST_NUMBERS = 1_000_000
"""The most numbers in a list of rows, depths or transitions."""
_BUDGETS = {"cuda": 65536}
_CPU_BUDGET = 4096

Numbers = int | str | Iterable[int]
Limits = int | Mapping[str, int] | None
Ids = tuple[int, ...] | Mapping[str, tuple[int, ...]] | None


def depth_list(name: str, given: Numbers | None) -> tuple[int, ...]:
    """Depths in increasing order, each once.

    >>> depth_list("depths", "1-4, 8"), depth_list("depths", 4), depth_list("depths", range(3))
    ((1, 2, 3, 4, 8), (4,), (0, 1, 2))
    """
    if given is None:
        return ()
    if isinstance(given, str):
        return tuple(sorted(set(parse_ranges(given, name, largest=DEEPEST, most=DEEPEST + 1)))) if given else ()
    return tuple(sorted(set(_numbers(name, given, DEEPEST))))


def transition_list(name: str, given: Any) -> tuple[int, ...]:
    """Updates as they are stored (`store.schema.transition_of`), in increasing order: t for t → t+1, k>R for a chord.

    >>> transition_list("transitions", "1-2, 1>3"), transition_list("transitions", [4, "0>4"])
    ((1, 2, 100001), (4, 300000))
    """
    if isinstance(given, bytes | Mapping) or not isinstance(given, Iterable):
        return depth_list(name, given)
    found: set[int] = set()
    for entry in filter(None, [given]) if isinstance(given, str) else given:
        if isinstance(entry, str):
            found.update(parse_transitions(entry, largest=DEEPEST))
        elif type(entry) is int and entry >= CHORD and ends_of(entry)[1] <= DEEPEST:
            found.add(entry)
        else:
            found.add(whole(name, entry, 0, DEEPEST))
    return tuple(sorted(found))


def rows(given: Numbers | Mapping[str, Numbers] | None) -> Ids:
    """Source rows, for all tasks or by the name of a task.

    >>> rows("0,5,10-12"), rows(5), rows({"gsm8k": range(2)})
    ((0, 5, 10, 11, 12), (5,), {'gsm8k': (0, 1)})
    """
    if given is None:
        return None
    if isinstance(given, Mapping):
        return {name: _rows(numbers) for name, numbers in _by_task("ids", given).items()}
    return _rows(given)


def _rows(given: Numbers) -> tuple[int, ...]:
    if given == "":
        raise LoopscopeError(f"{setting('ids', given)} is empty: name rows, or leave it out")
    return parse_ids(given) if isinstance(given, str) else _numbers("ids", given, LARGEST_ROW)


def limits(given: int | str | Mapping[str, int] | None) -> Limits:
    """The most questions, for all tasks or by the name of a task.

    >>> limits("100"), limits("gsm8k=100, piqa=50"), limits(3)
    (100, {'gsm8k': 100, 'piqa': 50}, 3)
    """
    if given is None:
        return None
    if isinstance(given, str):
        given = _limits_in(given)
    if isinstance(given, Mapping):
        return {name: whole("limit", most, 1, MOST_QUESTIONS) for name, most in _by_task("limit", given).items()}
    return whole("limit", given, 1, MOST_QUESTIONS)


def _limits_in(text: str) -> int | dict[str, int]:
    found: dict[str, int] = {}
    for entry in text.split(","):
        name, equals, number = (word.strip() for word in entry.rpartition("="))
        most = parse_number(number)
        if most is None or bool(name) is not bool(equals):
            raise LoopscopeError(
                f"{setting('limit', text)}: {shown(entry)} is not a number of questions up to {MOST_QUESTIONS:,}:"
                " write 100 or gsm8k=100"
            )
        if name in found:
            raise LoopscopeError(f"{setting('limit', text)} gives two numbers for {name or 'all tasks'}: give one")
        found[name] = most
    if "" in found and len(found) > 1:
        raise LoopscopeError(f"{setting('limit', text)}: give one number for all tasks, or one for each by name")
    return found.get("", found)


@dataclass(frozen=True)
class BatchPolicy:
    """How the questions of a work unit are put into batches.

    Attributes:
        name: "tokens" (by length, up to a budget of padded tokens), "questions" (source order, a fixed number),
            or "paper" (source order, two questions, natural padding).
        size: questions in a batch; None for "tokens".
        budget: padded tokens in a batch; None unless "tokens".
        padding: "right", or "none" where a model runs the sequences of a batch in one row; None until `on` decides.
    """

    name: Literal["tokens", "questions", "paper"]
    size: int | None = None
    budget: int | None = None
    padding: Literal["right", "none"] | None = None

    @classmethod
    def parse(cls, given: str | int) -> BatchPolicy:
        """`auto`, `paper` or a number of questions.

        >>> BatchPolicy.parse("8")
        BatchPolicy(name='questions', size=8, budget=None, padding=None)
        """
        if given == "auto":
            return cls("tokens", budget=_CPU_BUDGET)
        if given == "paper":
            return cls("paper", size=2)
        size = parse_number(given) if isinstance(given, str) else given
        if size is None:
            raise LoopscopeError(
                f"{setting('batch_size', given)} is not a number of questions: give one up to {MOST_QUESTIONS:,},"
                " `auto` or `paper`"
            )
        return cls("questions", size=whole("batch_size", size, 1, MOST_QUESTIONS))

    def on(self, device_type: str, *, unpadded: bool = False) -> BatchPolicy:
        """The same policy as it suits a kind of device and a model that may run without padding.

        The paper's batches are padded, and what was padded once stays so.
        """
        none = unpadded and self.name != "paper" and self.padding != "right"
        budget = None if self.budget is None else _BUDGETS.get(device_type, _CPU_BUDGET)
        return dataclasses.replace(self, budget=budget, padding="none" if none else "right")


def _by_task(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The same under the tasks' own names, of which each stands there once."""
    if wrong := [task for task in given if not isinstance(task, str | Task | LoadedTask)]:
        raise LoopscopeError(f"{setting(name)} takes numbers by the names of tasks; {wrong[0]!r} is not a name")
    found = {canonical(task): value for task, value in given.items()}
    if len(found) < len(given):
        names = [canonical(task) for task in given]
        twice = next(each for each in names if names.count(each) > 1)
        raise LoopscopeError(f"{setting(name)} names {twice} twice: name each task once")
    return found


def canonical(spec: str | Task | LoadedTask) -> str:
    """The name of the task that a specification means, as its records will call it.

    >>> canonical("ARC-Challenge:test"), canonical("mine=data/my.jsonl"), canonical("data/my.jsonl")
    ('arc_challenge', 'mine', 'my')
    """
    if not isinstance(spec, str):
        return spec.name
    if is_lm_eval(spec):
        return lm_eval_name(spec)
    name = spec.partition("=")[0] if "=" in spec else Path(spec.partition(":")[0]).name.partition(".")[0]
    benchmark = find_benchmark(name)
    return name if benchmark is None else benchmark.name


def task_list(given: Any) -> tuple[str | Task | LoadedTask, ...]:
    """Tasks: one, several as text with commas, or several as a list; names, files, `Task` objects, data sets.

    >>> task_list("gsm8k:train256, arithmetic"), task_list(["mine=data/a,b.jsonl"])
    (('gsm8k:train256', 'arithmetic'), ('mine=data/a,b.jsonl',))
    """
    if isinstance(given, str):
        return tuple(text("tasks", name.strip()) for name in given.split(",") if name.strip())
    if isinstance(given, os.PathLike):
        return (text("tasks", given),)
    if isinstance(given, Task) or is_dataset(given):
        return (_task(given),)
    if isinstance(given, bytes | Mapping) or not isinstance(given, Iterable):
        raise LoopscopeError(f"{setting('tasks', given)} is not a task: give names or files, e.g. 'arithmetic'")
    return tuple(_task(task) for task in given)


def _task(given: Any) -> str | Task | LoadedTask:
    if isinstance(given, Task | LoadedTask):
        return given
    if is_dataset(given):
        return Task.from_dataset(given)
    if isinstance(given, Mapping):
        raise LoopscopeError(f"{setting('tasks')} holds {shown(given)}: make a task of rows with Task.from_rows([...])")
    return text("tasks", given)


def _numbers(name: str, given: int | Iterable[int], largest: int) -> tuple[int, ...]:
    single = index(given)
    listed = [single] if single is not None else given
    if isinstance(listed, bytes | Mapping) or not isinstance(listed, Iterable):
        raise LoopscopeError(f"{setting(name, given)} is not a number or a list of numbers: give e.g. [1, 2]")
    numbers = list(islice(listed, MOST_NUMBERS + 1))
    if len(numbers) > MOST_NUMBERS:
        raise LoopscopeError(f"{setting(name)} gives more than {MOST_NUMBERS:,} numbers: give fewer, or leave it out")
    return tuple(whole(name, number, 0, largest) for number in numbers)


LONGEST_STEP = 4.0
"""The largest multiple of a proposed step that is measured."""


def scales_end(given: float | None) -> float | None:
    """Where scales end that go beyond 1: a multiple of the grid's spacing, or nothing.

    >>> scales_end(2), scales_end(1.5), scales_end(None)
    (2.0, 1.5, None)
    """
    if given is None:
        return None
    from loopscope.path import GRID_POINTS  # which needs numpy; `--help` needs none

    steps = given * (GRID_POINTS - 1)
    if not 1.0 < given <= LONGEST_STEP or abs(steps - round(steps)) > 1e-9:
        raise LoopscopeError(
            f"{setting('scales_to', given)}: give a multiple of {1 / (GRID_POINTS - 1):g} above 1 and up to"
            f" {LONGEST_STEP:g}, such as 2"
        )
    return round(steps) / (GRID_POINTS - 1)
