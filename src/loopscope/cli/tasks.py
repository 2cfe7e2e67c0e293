"""`loopscope tasks`: what can be measured, one line each. Reads tables only: no data, no torch."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

KINDS = {
    "solution": "reference solutions, scored token by token",
    "options": "options, scored together on their length-normalised log-likelihoods",
}


def list_tasks(*, as_json: bool = False, console: Console | None = None) -> None:
    """Print every task there is.

    Args:
        as_json: one JSON array on stdout instead of text, for other programs.
        console: where to print; stdout when left out.
    """
    rows = task_rows()
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    from rich.console import Console

    console = console or Console()

    def line(text: str, style: str | None = None) -> None:
        # Wrapped nowhere: a name that is cut or broken cannot be copied, nor found with grep.
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    for kind, title in KINDS.items():
        line(title, style="bold")
        for row in rows:
            if row["kind"] == kind:
                parts = [f"{name} {count}" for name, count in row["splits"].items()] + list(row["subsets"])
                line(f"  {row['name']:<15} {row['summary']} ({', '.join(parts)}; {row['source']})")
    line("Choose a part with NAME:SPLIT, e.g. gsm8k:train256; the first part is meant when none is named.")
    line("A file of your own is named by its path: my.jsonl, or NAME=my.jsonl.gz.")


def task_rows() -> list[dict[str, Any]]:
    """What is listed, as plain values."""
    from loopscope.tasks.registry import list_tasks as known_tasks

    return [dataclasses.asdict(task) for task in known_tasks()]
