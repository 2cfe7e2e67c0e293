"""How far a pass has come: a bar on a terminal, one rewritten line in a notebook, plain lines elsewhere, or nothing."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any, Literal, Self

Style = Literal["auto", "bar", "plain", "none"]
STYLES: tuple[Style, ...] = ("auto", "bar", "plain", "none")
SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_REWRITES = 0.25


def progress(style: Style, title: str, total: int, done: int) -> Progress:
    """The progress of `total` questions of which `done` were measured earlier, on stderr."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    notebook = getattr(shell, "kernel", None) is not None  # IPython in a terminal has no kernel
    if style == "auto":
        style = "bar" if notebook or sys.stderr.isatty() else "plain"
    kinds = {"none": Progress, "plain": Lines, "bar": NotebookLine if notebook else Bar}
    return kinds[style](title, total, done)


class Progress:
    """Counts, and shows nothing."""

    def __init__(self, title: str, total: int, done: int) -> None:
        self.title, self.total, self.done, self._before, self._tokens = title, total, done, done, 0
        self._began = time.monotonic()

    def advance(self, questions: int, tokens: int) -> None:
        """More questions, with their token positions, are measured."""
        self.done += questions
        self._tokens += tokens
        self.show()

    def show(self) -> None:
        """After each batch."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        """Nothing to end."""

    def figures(self) -> str:
        """Questions, rate, tokens per second and time left."""
        seconds = max(time.monotonic() - self._began, 1e-9)
        rate = (self.done - self._before) / seconds
        left = timedelta(seconds=round((self.total - self.done) / rate)) if rate > 0 else "unknown time"
        share = 100 * self.done // max(self.total, 1)
        speed = f"{rate:.1f}/s, {self._tokens / seconds:.0f} tokens/s"
        return f"{self.done}/{self.total} questions ({share}%), {speed}, {left} left"


class Lines(Progress):
    """A line every ten seconds, however long a batch takes, and one with the last batch."""

    def show(self) -> None:
        """The last batch at once."""
        if self.done >= self.total:
            self._print()

    def __enter__(self) -> Self:
        self._over = threading.Event()
        self._writer = threading.Thread(target=self._repeat, name="loopscope-progress", daemon=True)
        self._writer.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        self._writer.join()

    def _repeat(self) -> None:
        while not self._over.wait(SECONDS_BETWEEN_LINES):
            if self.done < self.total:
                self._print()

    def _print(self) -> None:
        with suppress(OSError):  # a closed terminal ends no pass
            print(f"{self.title}: {self.figures()}", file=sys.stderr, flush=True)


class Bar(Progress):
    """A bar of rich."""

    def __enter__(self) -> Self:
        from rich import progress
        from rich.console import Console

        title, figures = map(progress.TextColumn, ("{task.description}", "{task.fields[figures]}"))
        self._bar = progress.Progress(title, progress.BarColumn(), figures, console=Console(stderr=True))
        self._task = self._bar.add_task(self.title, total=self.total, completed=self.done, figures="")
        self._bar.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._bar.stop()

    def show(self) -> None:
        """Moves the bar."""
        self._bar.update(self._task, completed=self.done, figures=self.figures())


class NotebookLine(Progress):
    """One line of a cell's output, rewritten at most four times a second; it stays when the pass is over."""

    def __enter__(self) -> Self:
        from IPython.display import DisplayHandle

        self._shown: Any = DisplayHandle()  # type: ignore[no-untyped-call]
        self._shown.display(self._content(), raw=True)  # type: ignore[no-untyped-call]
        self._next = 0.0
        return self

    def __exit__(self, *raised: object) -> None:
        self._shown.update(self._content(), raw=True)

    def show(self) -> None:
        """Rewrites the line, unless that was done a moment ago."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + SECONDS_BETWEEN_REWRITES
            self._shown.update(self._content(), raw=True)

    def _content(self) -> dict[str, str]:
        return {"text/plain": f"{self.title}: {self.figures()}"}
