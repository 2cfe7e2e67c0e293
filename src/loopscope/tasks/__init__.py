"""Benchmark rows, prompt text, tokenisation, reference positions."""

from loopscope.tasks.encoding import (
    Example,
    LengthPolicy,
    LengthSurvey,
    Row,
    Sequence,
    Task,
    encode_pair,
    encode_row,
    fit_length,
    survey_lengths,
)
from loopscope.tasks.load import LoadedTask, load_task
from loopscope.tasks.registry import get_task, list_tasks, task_names
from loopscope.tasks.selection import parse_ids

__all__ = [
    "Example",
    "LengthPolicy",
    "LengthSurvey",
    "LoadedTask",
    "Row",
    "Sequence",
    "Task",
    "encode_pair",
    "encode_row",
    "fit_length",
    "get_task",
    "list_tasks",
    "load_task",
    "parse_ids",
    "survey_lengths",
    "task_names",
]
