"""`loopscope demo`: both embedded models on both embedded tasks, a summary in words, the runs and their report."""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopscope.errors import LoopscopeError, setting

if TYPE_CHECKING:
    from rich.console import Console

    from loopscope.store import StoredRun


@dataclass(frozen=True)
class Plan:
    """What the demo measures of one model.

    Attributes:
        transitions: the updates t → t+1, chosen around the trained depth.
        depths: where the utility is read.
        questions: of `arithmetic` and of `arithmetic-mc`, from the held-out split.
    """

    model: str
    transitions: tuple[int, ...]
    depths: tuple[int, ...]
    questions: tuple[int, int]


PLANS = (
    Plan("toy-ouro", (3, 4, 5, 6), tuple(range(1, 9)), (120, 40)),
    Plan("toy-huginn", (1, 4, 8), (1, 2, 3, 4, 5, 6, 8, 9, 12), (48, 16)),
)
TASKS = ("arithmetic", "arithmetic-mc")


def run_demo(output: Path, *, questions: int | None = None, progress_style: Any = "auto") -> None:
    """Measure, explain, write the report, and say where everything is.

    Args:
        output: folder for the runs and `report.html`; a second call finds the runs finished.
        questions: of each task and model, instead of the demo's own numbers.
        progress_style: how progress is shown.
    """
    from rich.console import Console

    if questions is not None and questions < 1:
        raise LoopscopeError(f"{setting('questions', questions)} is too small: ask at least 1, or leave it out")
    console = Console()
    began = time.monotonic()
    console.print(
        "[bold]loopscope demo[/bold]: two small looped models that ship with loopscope, questions they never saw"
    )
    runs = [run for plan in PLANS for run in measure_plan(plan, output, questions, progress_style)]
    summarise(runs, console)
    from loopscope.report import write_report

    report = write_report([run.path for run in runs], output / "report.html")
    console.print(f"\nruns    {output}/toy-…", highlight=False)
    console.print(f"report  {report}  (open it in a browser; nothing is loaded from the network)", highlight=False)
    if find_spec("matplotlib") is None:
        console.print("        without the paper's figures: pip install 'loopscope[studies]' adds them", markup=False)
    console.print(f"took    {time.monotonic() - began:.0f} s", highlight=False)


def measure_plan(plan: Plan, output: Path, questions: int | None, progress_style: Any) -> list[StoredRun]:
    """One run a task, because the tasks have different numbers of questions."""
    from loopscope.api import measure

    return [
        measure(
            plan.model,
            [task],
            output=output / f"{plan.model}-{task}",
            transitions=plan.transitions,
            depths=plan.depths,
            level="grid",
            tokens=plan.model == "toy-ouro",
            limit=questions or count,
            scalar_checks=0,
            device="cpu",
            dtype="float32",
            progress_style=progress_style,
            command_line=("loopscope", "demo"),
        )
        for task, count in zip(TASKS, plan.questions, strict=True)
    ]


def summarise(runs: list[StoredRun], console: Console) -> None:
    """What the runs say, in sentences that need no paper."""
    from loopscope.studies.summary import summarise as summary_of

    for run in runs:
        found = summary_of(run)
        console.print(f"\n[bold]{found.model}[/bold] on {found.task}, {found.questions} questions", highlight=False)
        for line in found.lines():
            console.print(f"  {line}", highlight=False)
