"""`loopscope measure`: flags as text to a call of `loopscope.measure.run.measure`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import Any


def run_measure(*, tasks: str, transitions: str, depths: str, ids: str, limit: str, progress: str, **rest: Any) -> None:
    """Measure, then say where the run is and what to do with it."""
    from loopscope.measure.run import measure
    from loopscope.measure.settings import parse_depths, parse_limits
    from loopscope.tasks.selection import parse_ids

    run = measure(
        tasks=split_names(tasks),
        transitions=parse_depths(transitions, "--transitions") if transitions else (),
        depths=parse_depths(depths) if depths else (),
        ids=parse_ids(ids) if ids else None,
        limit=parse_limits(limit) if limit else None,
        notify=lambda line: print(f"loopscope: {line}", file=sys.stderr),
        progress_style=progress,  # type: ignore[arg-type]
        **rest,
    )
    where = shlex.quote(str(rest["output"]))
    print(f"{run.records.height} updates in {where}. Next: loopscope tables {where} | loopscope report {where}")


def split_names(text: str) -> Sequence[str]:
    """Comma-separated names.

    >>> split_names("gsm8k:train256, arithmetic")
    ['gsm8k:train256', 'arithmetic']
    """
    return [name.strip() for name in text.split(",") if name.strip()]
