"""Tasks by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from loopscope._errors import LoopscopeError
from loopscope.tasks.arithmetic.task import Arithmetic, ArithmeticChoice
from loopscope.tasks.protocol import Task

_TASKS: dict[str, tuple[Callable[[], Task], str]] = {
    "arithmetic": (Arithmetic, "word problems of two to six operations with worked solutions, made from a seed"),
    "arithmetic-mc": (ArithmeticChoice, "the same problems with four answers, the wrong ones from typical slips"),
}


def task_names() -> dict[str, str]:
    """Every task's name with one line about it."""
    return {name: line for name, (_, line) in _TASKS.items()}


def get_task(name: str) -> Task:
    """The task of that name."""
    if name not in _TASKS:
        near = difflib.get_close_matches(name, _TASKS, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"choose one of {', '.join(_TASKS)}"
        raise LoopscopeError(f"unknown task {name!r}: {hint}")
    return _TASKS[name][0]()
