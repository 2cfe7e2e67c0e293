"""`loopscope measure`: flags to a call of `loopscope.measuring.run.measure`, which reads text as flags are written."""

from __future__ import annotations

import shlex
import sys
from typing import Any


def run_measure(*, progress: str, **rest: Any) -> None:
    """Measure, then say where the run is and what to do with it."""
    from loopscope.api import measure

    run = measure(
        notify=lambda line: print(f"loopscope: {line}", file=sys.stderr),
        progress_style=progress,  # type: ignore[arg-type]
        **rest,
    )
    where = shlex.quote(str(rest["output"]))
    print(f"{run.records.height} updates in {where}. Next: loopscope tables {where} | loopscope report {where}")
