"""`RunSeries`: the runs of several models on the same tasks, such as the checkpoints of a training, in order."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, overload

from loopscope.errors import LoopscopeError, setting
from loopscope.run import Run
from loopscope.store.training_step import is_run, runs_at, training_step

if TYPE_CHECKING:
    from loopscope.measuring.checkpoints import Checkpoint
    from loopscope.measuring.plan import Request
    from loopscope.measuring.run import Notify
    from loopscope.stats import Bootstrap
    from loopscope.studies.figures.style import FigureResult
    from loopscope.studies.result import Row, TableResult


class RunSeries(Sequence[Run]):
    """Runs in the order in which they were measured; tables and figures are made of all of them together.

    `RunSeries("runs/over-time")` opens a folder of run directories in the order of their steps.
    """

    def __init__(self, path: str | os.PathLike[str], runs: Sequence[Run] | None = None) -> None:
        self.path = Path(path)
        if runs is None:
            folders = runs_at(self.path)
            if folders == [self.path] and not is_run(self.path):
                raise LoopscopeError(f"{self.path} holds no run: name a folder that `loopscope measure` wrote")
            runs = [Run(folder) for folder in folders]
        self.runs = tuple(runs)

    def __len__(self) -> int:
        return len(self.runs)

    @overload
    def __getitem__(self, place: int) -> Run: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Run]: ...
    def __getitem__(self, place: int | slice) -> Run | Sequence[Run]:
        return self.runs[place]

    @property
    def steps(self) -> tuple[int | None, ...]:
        """The training step of every run; None where it is not known."""
        return tuple(training_step(run.manifest) for run in self.runs)

    def table(
        self, name: str = "training", bootstrap: Bootstrap | None = None, *, protocol: str | None = None
    ) -> TableResult[Row]:
        """A table of all runs, as `Run.table`; by default what the training did, step by step."""
        from loopscope.studies import table

        return table(name, self.runs, bootstrap, protocol=protocol)

    def figure(
        self,
        name: str = "training",
        bootstrap: Bootstrap | None = None,
        *,
        width: str = "two",
        style: str | os.PathLike[str] | None = None,
    ) -> FigureResult:
        """A figure of all runs; arguments are those of `Run.figure`."""
        from loopscope.studies import figure

        return figure(name, self.runs, bootstrap, width=width, style=style)

    def report(self, output: str | os.PathLike[str], bootstrap: Bootstrap | None = None) -> Path:
        """One self-contained HTML page about all runs."""
        from loopscope.report import write_report

        return write_report([run.path for run in self.runs], output, bootstrap)

    def summary(self) -> str:
        """How many runs of what there are, in a sentence."""
        updates = sum(run.records.height for run in self.runs if run.manifest.transitions)
        utilities = sum(run.depths.height for run in self.runs)
        counted = f"{updates} updates" if updates else f"{utilities} utilities"
        known = [step for step in self.steps if step is not None]
        steps = f", steps {min(known)} to {max(known)}" if known else ""
        return f"{len(self.runs)} runs in {shlex.quote(str(self.path))}{steps}: {counted}."

    def next_commands(self) -> str:
        """What one may do with them on the command line."""
        where = shlex.quote(str(self.path))
        if None in self.steps:
            return f"loopscope tables {where} | loopscope report {where}"
        return f"loopscope tables {where} --name training | loopscope report {where}"

    def __repr__(self) -> str:
        return f"<RunSeries: {self.summary()}>"


def measure_each(
    found: Sequence[Checkpoint],
    requests: Callable[[], Sequence[Request]],
    folder: Path,
    measure: Callable[[Request, str], Run],
    notify: Notify | None = None,
) -> RunSeries:
    """Measure several models one after the other, each into a directory of its own in `folder`."""
    if is_run(folder):
        raise LoopscopeError(
            f"{folder} is a run directory, and {len(found)} models need a folder of runs: choose another"
            f" {setting('output')}"
        )
    say: Notify = notify or (lambda line: None)
    asked = requests()
    if unknown := [each.name for each in found if each.step is None]:
        steps = setting("training_step", ",".join(str(1000 * (at + 1)) for at in range(len(found))))
        say(f"no training step is told by {', '.join(unknown[:3])}{', …' * (len(unknown) > 3)}: {steps} gives them")
    runs = []
    for number, (each, request) in enumerate(zip(found, asked, strict=True), 1):
        say(f"model {number} of {len(found)}: {each.spec}")
        try:
            runs.append(measure(request, str(folder / each.name)))
        except LoopscopeError as error:
            raise LoopscopeError(f"{each.name} ({number} of {len(found)}): {error}") from error
    return RunSeries(folder, runs)
