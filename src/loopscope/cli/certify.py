"""`loopscope certify RUN`: certificates beside a run that was measured without, and how many verdicts they decide."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from loopscope.cli.flags import flag


def certify(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run directory.")],
    data_dir: Annotated[str | None, flag("--data-dir", "Where the benchmarks are, if they have moved.")] = None,
    model: Annotated[str | None, flag("--model", "Where the model is, if it has moved.")] = None,
    device: Annotated[str | None, flag("--device", "Where to measure again; the run's own by default.")] = None,
    progress: Annotated[str, flag("--progress", "auto, bar, plain or none.")] = "auto",
) -> None:
    """Compute a run's states again and certify its verdicts, beside the run."""
    from loopscope.api import certify as certify_run
    from loopscope.cli.studies import render_tables

    certify_run(
        run,
        data_dir=data_dir,
        model=model,
        device=device,
        progress_style=progress,  # type: ignore[arg-type]
        notify=lambda line: print(f"loopscope: {line}", file=sys.stderr),
    )
    sys.stdout.write(render_tables([run], "certificates"))
