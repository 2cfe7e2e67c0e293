"""Benchmark rows, prompt text, tokenisation, reference positions."""

from loopscope.tasks.encoding import Example, LoadedTask, Row, Sequence, encode_pair, encode_row
from loopscope.tasks.known_tasks import list_tasks
from loopscope.tasks.load import load_task
from loopscope.tasks.own_task import Task

__all__ = ["Example", "LoadedTask", "Row", "Sequence", "Task", "encode_pair", "encode_row", "list_tasks", "load_task"]
