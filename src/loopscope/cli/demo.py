"""`loopscope demo`: both embedded models on both embedded tasks, a summary in words, the runs and their report."""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from loopscope.cli.flags import flag
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


def demo(
    output: Annotated[str, flag("--output", "Folder for the runs and the report.")] = "runs/demo",
    questions: Annotated[int, flag("--questions", "Questions of each task and model.")] = 0,
    progress: Annotated[str, flag("--progress", "auto, bar, plain or none.")] = "auto",
) -> None:
    """Embedded models and tasks, no network: measure, print the summary, write the report."""
    from rich.console import Console

    from loopscope.report import write_report

    if questions < 0:
        raise LoopscopeError(f"{setting('questions', questions)} is too small: ask at least 1, or leave it out")
    folder, console = Path(output), Console()
    began = time.monotonic()
    console.print(
        "[bold]loopscope demo[/bold]: two small looped models that ship with loopscope, questions they never saw"
    )
    runs = [run for plan in PLANS for run in _measure(plan, folder, questions, progress)]
    _summarise(runs, console)
    page = write_report([run.path for run in runs], folder / "report.html")
    console.print(f"\nruns    {folder}/toy-…", highlight=False)
    console.print(f"report  {page}  (open it in a browser; nothing is loaded from the network)", highlight=False)
    if find_spec("matplotlib") is None:
        console.print("        without the paper's figures: pip install 'loopscope[studies]' adds them", markup=False)
    console.print(f"took    {time.monotonic() - began:.0f} s", highlight=False)


def _measure(plan: Plan, folder: Path, questions: int, progress: Any) -> list[StoredRun]:
    """One run per task, because the tasks have different numbers of questions."""
    from loopscope.api import measure

    return [
        measure(
            plan.model,
            [task],
            output=folder / f"{plan.model}-{task}",
            transitions=plan.transitions,
            depths=plan.depths,
            level="grid",
            tokens=plan.model == "toy-ouro",
            limit=questions or count,
            scalar_checks=0,
            device="cpu",
            dtype="float32",
            progress_style=progress,
            command_line=("loopscope", "demo"),
        )
        for task, count in zip(TASKS, plan.questions, strict=True)
    ]


def _summarise(runs: list[StoredRun], console: Console) -> None:
    """What the runs say, in sentences that need no paper."""
    from loopscope.studies.summary import summarise

    for run in runs:
        found = summarise(run)
        console.print(f"\n[bold]{found.model}[/bold] on {found.task}, {found.questions} questions", highlight=False)
        for line in found.lines():
            console.print(f"  {line}", highlight=False)
