"""What the host does beside the device: the next unit is encoded, and the last one stored, in threads of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

Result = TypeVar("Result")


def one_ahead(calls: Iterable[Callable[[], Result]]) -> Iterator[Result]:
    """The results of the calls, in order; each call is made while the result before it is in use.

    >>> list(one_ahead([lambda: 1, lambda: 2, lambda: 3]))
    [1, 2, 3]
    """
    pool = ThreadPoolExecutor(1, "loopscope-ahead")
    try:
        made: deque[Future[Result]] = deque()
        for call in calls:
            made.append(pool.submit(call))
            if len(made) > 1:
                yield made.popleft().result()
        while made:
            yield made.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


class OneBehind:
    """Calls in a thread, one after the other in the order in which they were handed over, one at a time.

    `do` waits for the call before, so that no more than one is on its way, and raises what that one raised. Leaving
    the block waits for the last; what was handed over is always completed.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "loopscope-behind")
        self._last: Future[Any] | None = None

    def do(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Hand a call over."""
        self.wait()
        self._last = self._pool.submit(call, *arguments)

    def wait(self) -> None:
        """Until the last call is done; raises what it raised."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()
        if error is None:
            self.wait()
