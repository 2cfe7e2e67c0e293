"""Benchmark rows, prompt text, tokenisation, reference positions."""

from loopscope.tasks.encoding import encode_pair, encode_row
from loopscope.tasks.example import Example, Row, Sequence
from loopscope.tasks.protocol import Task
from loopscope.tasks.registry import get_task, task_names

__all__ = ["Example", "Row", "Sequence", "Task", "encode_pair", "encode_row", "get_task", "task_names"]
