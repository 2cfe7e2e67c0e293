"""How far a pass has come, and where its time goes.

Progress is a bar on a terminal, one line that is rewritten in a notebook, a line now and then elsewhere, or nothing.
Stages (`with stage("forward")`) are timed only within a block of `stage_times`; one on a GPU is timed by the device's
own clock, so that nothing waits for it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Literal, Protocol, Self

import torch

Style = Literal["auto", "bar", "plain", "none"]
STYLES: tuple[Style, ...] = ("auto", "bar", "plain", "none")
SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_REWRITES = 0.25


class Progress(Protocol):
    """What a pass tells about itself, batch by batch."""

    def advance(self, questions: int, tokens: int) -> None:
        """More questions, with their token positions, are measured."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def progress(style: Style, title: str, total: int, done: int) -> Progress:
    """The progress of `total` questions of which `done` were measured earlier."""
    if style == "auto":
        style = "bar" if in_notebook() or sys.stderr.isatty() else "plain"
    if style == "none":
        return Silent()
    if style == "bar" and in_notebook():
        return NotebookLine(title, total, done)
    return Bar(title, total, done) if style == "bar" else Lines(title, total, done)


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this: IPython in a terminal has no kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class Silent:
    """Says nothing."""

    def advance(self, questions: int, tokens: int) -> None:
        """Nothing to tell."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class Lines(Silent):
    """A line on stderr every ten seconds, however long a batch takes, and at the end."""

    def __init__(self, title: str, total: int, done: int) -> None:
        self._title, self._total, self._done, self._before = title, total, done, done
        self._tokens = 0
        self._began = time.monotonic()
        self._over = threading.Event()
        self._speaker = threading.Thread(target=self._speak, name="loopscope-progress", daemon=True)

    def advance(self, questions: int, tokens: int) -> None:
        """Counts, and speaks if that was the last batch."""
        self._done += questions
        self._tokens += tokens
        if self._done >= self._total:
            self._print()

    def __enter__(self) -> Self:
        self._speaker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._speaker.join()

    def _speak(self) -> None:
        while not self._over.wait(SECONDS_BETWEEN_LINES):
            if self._done < self._total:
                self._print()

    def _print(self) -> None:
        with suppress(OSError):  # a closed terminal ends no pass
            print(self._line(time.monotonic() - self._began), file=sys.stderr, flush=True)

    def _line(self, seconds: float) -> str:
        rate = (self._done - self._before) / max(seconds, 1e-9)
        left = (self._total - self._done) / rate if rate > 0 else float("inf")
        share = 100 * self._done // max(self._total, 1)
        return (
            f"{self._title}: {self._done}/{self._total} questions ({share}%), {rate:.1f}/s,"
            f" {self._tokens / max(seconds, 1e-9):.0f} tokens/s, {_clock(left)} left"
        )


class NotebookLine(Lines):
    """One line of a cell's output, rewritten as batches come in; it stays when the pass is over."""

    def __init__(self, title: str, total: int, done: int) -> None:
        super().__init__(title, total, done)
        self._written = self._began
        self._shown: Any = None

    def advance(self, questions: int, tokens: int) -> None:
        """Counts, and rewrites the line unless that was done a moment ago."""
        self._done += questions
        self._tokens += tokens
        now = time.monotonic()
        if self._done >= self._total or now - self._written >= SECONDS_BETWEEN_REWRITES:
            self._written = now
            self._print()

    def __enter__(self) -> Self:
        from IPython.display import display

        self._shown = display(self._content(), raw=True, display_id=True)  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._print()

    def _print(self) -> None:
        self._shown.update(self._content(), raw=True)

    def _content(self) -> dict[str, str]:
        return {"text/plain": self._line(time.monotonic() - self._began)}


class Bar(Silent):
    """A rich progress bar on stderr."""

    def __init__(self, title: str, total: int, done: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._bar: Any = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task(title, total=total, completed=done, speed="")
        self._tokens = self._questions = 0
        self._began = time.monotonic()

    def advance(self, questions: int, tokens: int) -> None:
        """Moves the bar and refreshes the speed beside it."""
        self._tokens += tokens
        self._questions += questions
        seconds = max(time.monotonic() - self._began, 1e-9)
        speed = f"{self._questions / seconds:.1f}/s · {self._tokens / seconds:.0f} tokens/s"
        self._bar.update(self._task, advance=questions, speed=speed)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()


def _clock(seconds: float) -> str:
    """Minutes and seconds, or hours and minutes.

    >>> _clock(75), _clock(7260), _clock(float("inf"))
    ('1:15', '2h01', 'unknown time')
    """
    if seconds == float("inf"):
        return "unknown time"
    whole = round(seconds)
    return f"{whole // 3600}h{whole % 3600 // 60:02d}" if whole >= 3600 else f"{whole // 60}:{whole % 60:02d}"


class StageTimes:
    """Seconds by name: `host` as this machine's clock saw them, `device` as the GPU's did."""

    def __init__(self) -> None:
        self.host: dict[str, float] = {}
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._lock = threading.Lock()

    def add_host(self, name: str, seconds: float) -> None:
        """More seconds of a stage."""
        with self._lock:
            self.host[name] = self.host.get(name, 0.0) + seconds

    def add_device(self, name: str, begun: torch.cuda.Event, ended: torch.cuda.Event) -> None:
        """A stage between two events."""
        with self._lock:
            self._events.append((name, begun, ended))

    def device(self) -> dict[str, float]:
        """Seconds on the device; waits for it."""
        found: dict[str, float] = {}
        for name, begun, ended in self._events:
            ended.synchronize()
            found[name] = found.get(name, 0.0) + begun.elapsed_time(ended) / 1000.0
        return found


_times: StageTimes | None = None


@contextmanager
def stage_times() -> Iterator[StageTimes]:
    """Time every stage of every pass in this process, for as long as the block runs."""
    global _times
    before, _times = _times, StageTimes()
    try:
        yield _times
    finally:
        _times = before


@contextmanager
def stage(name: str, device: torch.device | None = None) -> Iterator[None]:
    """A stage of a pass; with a device it is what the device does that counts, without one what this thread does."""
    times = _times
    if times is None:
        yield
        return
    began = time.perf_counter()
    on_gpu = device is not None and device.type == "cuda"
    begun = _mark(device) if on_gpu else None
    yield
    if begun is not None:
        times.add_device(name, begun, _mark(device))
    times.add_host(name, time.perf_counter() - began)


def _mark(device: torch.device | None) -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event
