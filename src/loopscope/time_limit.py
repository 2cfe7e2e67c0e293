"""A limit of time for code that comes from somebody else and runs in this process, such as a template."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class TimeLimitError(Exception):
    """The code within `time_limit` took too long."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises `TimeLimitError` in this thread after some seconds; a call into compiled code is not interrupted."""
    thread, lock, running = threading.get_ident(), threading.Lock(), True

    def interrupt() -> None:
        with lock:
            if running:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(TimeLimitError))

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            running = False
        timer.cancel()
