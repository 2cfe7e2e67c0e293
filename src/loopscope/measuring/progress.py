"""How far a pass has come, through rich: a bar on a terminal or in a notebook, plain lines elsewhere, or nothing."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from datetime import timedelta
from importlib.util import find_spec
from typing import Literal, Self

Style = Literal["auto", "bar", "plain", "none"]
STYLES: tuple[Style, ...] = ("auto", "bar", "plain", "none")
SECONDS_BETWEEN_LINES = 10.0


def progress(style: Style, title: str, total: int, done: int) -> Progress:
    """The progress of `total` questions of which `done` were measured earlier, on stderr."""
    return Progress(style, title, total, done)


class Progress:
    """Counts questions and token positions, and shows them as its style says."""

    def __init__(self, style: Style, title: str, total: int, done: int) -> None:
        from rich import progress
        from rich.console import Console

        console = Console(stderr=True)
        if style == "auto":
            shows = console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)
            style = "bar" if shows else "plain"
        self.style, self._tokens = style, 0
        self._began = self._last_line = time.monotonic()
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TextColumn("{task.fields[figures]}"),
            console=console,
            disable=style != "bar",
        )
        task = self._bar.add_task(title, total=total, completed=done, figures="")
        self._task, self._before = self._bar.tasks[task], done

    def advance(self, questions: int, tokens: int) -> None:
        """More questions, with their token positions, are measured; fewer, where a worker was lost with them."""
        self._tokens += tokens
        self._bar.advance(self._task.id, questions)
        self._bar.update(self._task.id, figures=self.figures())
        now = time.monotonic()
        if self.style == "plain" and (self._task.finished or now - self._last_line >= SECONDS_BETWEEN_LINES):
            self._last_line = now
            with suppress(OSError):  # a closed terminal ends no pass
                print(f"{self._task.description}: {self.figures()}", file=sys.stderr, flush=True)

    def figures(self) -> str:
        """Questions, rate, tokens per second and time left."""
        done, total = int(self._task.completed), int(self._task.total or 0)
        seconds = max(time.monotonic() - self._began, 1e-9)
        rate = (done - self._before) / seconds
        left = timedelta(seconds=round((total - done) / rate)) if rate > 0 else "unknown time"
        speed = f"{rate:.1f}/s, {self._tokens / seconds:.0f} tokens/s"
        return f"{done}/{total} questions ({100 * done // max(total, 1)}%), {speed}, {left} left"

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._bar.stop()
