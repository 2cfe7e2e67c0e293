"""Benchmark rows, prompt text, tokenisation, reference positions."""

from loopscope.tasks.encoding import (
    Example,
    LengthPolicy,
    LoadedTask,
    Row,
    Sequence,
    encode_pair,
    encode_row,
    fit_lengths,
)
from loopscope.tasks.known_tasks import list_tasks
from loopscope.tasks.load import load_task
from loopscope.tasks.own_task import Task
from loopscope.tasks.source_rows import parse_ids

__all__ = [
    "Example",
    "LengthPolicy",
    "LoadedTask",
    "Row",
    "Sequence",
    "Task",
    "encode_pair",
    "encode_row",
    "fit_lengths",
    "list_tasks",
    "load_task",
    "parse_ids",
]
