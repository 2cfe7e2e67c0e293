"""A limit of time for code that comes from somebody else and runs in this process, such as a template."""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class TimeLimitError(Exception):
    """The code within `time_limit` took too long."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises `TimeLimitError` in this thread after some seconds.

    In the main thread a signal does it, which interrupts a regular expression, too; elsewhere a call into compiled code
    is not interrupted.
    """
    if _alarm_is_free():
        yield from _by_signal(seconds)
    else:
        yield from _by_thread(seconds)


def _alarm_is_free() -> bool:
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        return False
    return signal.getsignal(signal.SIGALRM) is signal.SIG_DFL and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def _by_signal(seconds: float) -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise TimeLimitError

    signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _by_thread(seconds: float) -> Iterator[None]:
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
