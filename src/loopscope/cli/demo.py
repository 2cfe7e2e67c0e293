"""`loopscope demo`: the embedded models on the embedded tasks, a summary in words, the runs and their report."""

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
    """What the demo measures of one model on one task.

    Attributes:
        transitions: the updates t → t+1, around the trained depth.
        depths: where the utility is read.
        questions: of the held-out split.
        model_args: options of the model.
    """

    model: str
    task: str
    transitions: tuple[int, ...]
    depths: tuple[int, ...]
    questions: int
    model_args: str = ""


PLANS = (
    Plan("toy-ouro", "stories", (3, 4, 5), tuple(range(1, 7)), 32),
    Plan("toy-ouro", "stories", (3,), tuple(range(1, 6)), 12, "inside=3"),
    Plan("toy-huginn", "stories", (3,), tuple(range(1, 7)), 12),
    Plan("toy-ouro", "arithmetic", (4,), tuple(range(1, 7)), 24),
)
"""The first is the one that the summary opens with."""


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
    console.print("[bold]loopscope demo[/bold]: two small looped models that ship with loopscope, texts they never saw")
    runs = [_measure(plan, folder, questions, progress) for plan in PLANS]
    _summarise(runs, console)
    page = write_report([run.path for run in runs], folder / "report.html")
    console.print(f"\nruns    {folder}/toy-…", highlight=False)
    console.print(f"report  {page}  (open it in a browser; nothing is loaded from the network)", highlight=False)
    if find_spec("matplotlib") is None:
        console.print("        without the paper's figures: pip install 'loopscope[studies]' adds them", markup=False)
    console.print(f"took    {time.monotonic() - began:.0f} s", highlight=False)


def _measure(plan: Plan, folder: Path, questions: int, progress: Any) -> StoredRun:
    """One run per model and task, because each has its own number of questions."""
    from loopscope.api import measure_with

    return measure_with(
        plan.model,
        [plan.task],
        model_args=plan.model_args,
        output=folder / "-".join(filter(None, [plan.model, plan.model_args.replace("=", "-"), plan.task])),
        transitions=plan.transitions,
        depths=plan.depths,
        level="grid",
        tokens=plan.model == "toy-ouro" and not plan.model_args,
        limit=questions or plan.questions,
        scalar_checks=0,
        device="cpu",
        dtype="float32",
        progress=progress,
    )


def _summarise(runs: list[StoredRun], console: Console) -> None:
    """What the runs say, in sentences that need no paper: the finding, then where it holds and where it does not."""
    from loopscope.studies.summary import summarise

    found = [summarise(run) for run in runs]
    leading = found[0].earliest_decline
    if leading is not None:
        console.print(f"\n[bold]{found[0].model} on {found[0].task}: {leading.finding()}.[/bold]", highlight=False)
    console.print("\nWhere it holds, and where it does not:", highlight=False)
    for one in found:
        console.print(f"\n[bold]{one.model}[/bold] on {one.task}, {one.questions} questions", highlight=False)
        # The first finding stands above already.
        said = one is found[0] and leading is not None
        for line in one.lines()[said:]:
            console.print(f"  {line}", highlight=False)
