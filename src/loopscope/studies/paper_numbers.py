"""Whose numbers studies read of a run that was measured under the paper's protocol: the paper's own, or ours.

Such a run holds both: ours in `questions`, the paper's envelope, brackets, FP32 residuals and adaptive extremes in
`as_in_paper`, under the same names.
"""

from __future__ import annotations

import polars as pl

from loopscope.errors import LoopscopeError, choice, setting
from loopscope.store import StoredRun
from loopscope.store.schema import AS_IN_PAPER, QUESTIONS

PROTOCOLS = ("loopscope", "paper")
SHARED = tuple(name for name in AS_IN_PAPER.names if name in QUESTIONS.names and name not in ("row", "transition"))
"""Columns of both tables; those that identify a row are the same in both."""


def check_protocol(protocol: str | None, runs: tuple[StoredRun, ...]) -> str | None:
    """The protocol that was asked for, which every run must hold."""
    if protocol is None:
        return None
    choice("protocol", protocol, PROTOCOLS)
    without = next((run for run in runs if protocol == "paper" and run.manifest.protocol != "paper"), None)
    if without is not None:
        raise LoopscopeError(
            f"{without.path} holds no numbers of the paper's protocol: measure it with {setting('protocol', 'paper')}"
        )
    return protocol


def bounds_of(run: StoredRun, protocol: str | None) -> str:
    """Whose numbers the studies of a run read: those that are asked for, else those of its own protocol."""
    held = any(table.name == AS_IN_PAPER.name for table in run.manifest.tables())
    return "paper" if held and protocol != "loopscope" else "loopscope"


def as_in_paper(own: pl.DataFrame, run: StoredRun) -> pl.DataFrame:
    """Some rows of `questions` with the paper's numbers, wherever it has others."""
    keys, suffix = ["task", "split", "row", "transition"], " as in paper"
    paper = run.read(AS_IN_PAPER.name)
    both = own.join(paper, on=keys, how="left", suffix=suffix, maintain_order="left")
    shared = [name for name in SHARED if name not in keys]
    return both.with_columns(pl.coalesce(name + suffix, name).alias(name) for name in shared).select(
        *own.columns, *(name for name in AS_IN_PAPER.names if name not in own.columns)
    )
