"""Work on some rows at a time: slices, threads of a CPU, matrix products without TF32.

On a CPU groups of rows go side by side, each on its share of torch's threads: small operations on small arrays gain
little from torch's own threads, which all wait for the last at the end of every operation.
"""

from __future__ import annotations

import contextvars
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch


@contextmanager
def full_precision_products() -> Iterator[None]:
    """Matrix products without TF32, whatever the process has chosen for itself."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def blocks(length: int, size: int) -> Iterator[slice]:
    """Consecutive slices that cover range(length)."""
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


Result = TypeVar("Result")
_MOST = 4  # Python runs one thread at a time between operations


def workers() -> int:
    """How many groups of tokens are worked on at a time."""
    return min(_MOST, torch.get_num_threads())


def in_parallel(tasks: Sequence[Callable[[], Result]]) -> list[Result]:
    """The results of all tasks, in their order; an error in one is raised here."""
    if len(tasks) == 1 or workers() == 1:
        return [task() for task in tasks]
    pool = _pool(torch.get_num_threads(), os.getpid())
    running = [pool.submit(contextvars.copy_context().run, task) for task in tasks]
    return [task.result() for task in running]


@functools.cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads that are all started, and know how many of torch's threads are theirs.

    A forked process has none of its parent's threads, so it gets a pool of its own.
    """
    number = workers()
    all_started = threading.Barrier(number)
    pool = ThreadPoolExecutor(number, "loopscope", initializer=_begin, initargs=(threads // number,))
    for started in [pool.submit(all_started.wait) for _ in range(number)]:
        started.result()
    torch.set_num_threads(threads)  # what threads started elsewhere begin with is one setting for the process
    return pool


def _begin(threads: int) -> None:
    torch.get_num_threads()  # the first question makes a thread take over the process's setting
    torch.set_num_threads(threads)
