"""`loopscope demo`: an embedded model on an embedded task, the finding in words, and the report; `--all` for more."""

from __future__ import annotations

import textwrap
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from loopscope.cli.flags import PROGRESS, flag

if TYPE_CHECKING:
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
    Plan("toy-ouro", "stories", (4, 5), tuple(range(1, 7)), 16),
    Plan("toy-ouro", "stories", (3,), tuple(range(1, 6)), 12, "inside=3"),
    Plan("toy-huginn", "stories", (3,), tuple(range(1, 7)), 12),
    Plan("toy-ouro", "arithmetic", (4,), tuple(range(1, 7)), 24),
)
"""The first is the one that the finding is about."""


def demo(
    output: Annotated[str, flag("--output", "Folder for the runs and the report.", metavar="FOLDER")] = "runs/demo",
    questions: Annotated[
        int | None, flag("--questions", "Questions of each task and model.", metavar="N", min=1, show_default=False)
    ] = None,
    everything: Annotated[bool, flag("--all", "Also a nonlinear readout, a second model and a second task.")] = False,
    progress: Annotated[str, flag("--progress", "How progress is shown.", choices=PROGRESS)] = "auto",
) -> None:
    """Measure an embedded model on texts it never saw, say what was found, and write the report; no network."""
    from loopscope.studies.runs import first_finding, run_lines

    folder, began = Path(output), time.monotonic()
    print("toy-ouro, a small looped model that ships with loopscope, on texts it never saw (float32):", flush=True)
    runs = [_measure(PLANS[0], folder, questions, progress)]
    found = first_finding(runs[0])
    print(*textwrap.wrap(f"{found.title('toy-ouro')}. {found.sentence()}", 79), sep="\n", flush=True)
    runs += [_measure(plan, folder, questions, progress) for plan in (PLANS[1:] if everything else ())]
    for run in runs:
        if everything:
            print(f"\n{run.path.name}")
        print(*run_lines(run)[1:], sep="\n", flush=True)
    from loopscope.report import write_report

    page = write_report([run.path for run in runs], folder / "report.html")
    print(f"report: {page} (open it in a browser; it loads nothing from the network)")
    if find_spec("matplotlib") is None:
        print("without the paper's figures: pip install '.[studies]' in loopscope's folder adds them")
    more = "" if everything else " `loopscope demo --all` adds a nonlinear readout, a second model and a second task."
    print(f"Took {time.monotonic() - began:.0f} s.{more}")


def _measure(plan: Plan, folder: Path, questions: int | None, progress: Any) -> StoredRun:
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
