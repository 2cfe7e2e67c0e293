"""The golden runs: small measurements whose numbers must not move, and how a run becomes comparable frames.

States are float64, so that another processor gives the same numbers; readouts are float32, as users have them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import torch

import loopscope as ls
from loopscope.studies import TABLES


@dataclass(frozen=True)
class GoldenRun:
    """One call of `measure`."""

    name: str
    model: str | Callable[[], Any]
    tasks: tuple[Any, ...]
    settings: dict[str, Any] = field(default_factory=dict)

    def measure(self, output: Path) -> ls.Run:
        """The run, measured now."""
        settings = {"dtype": "float64", "device": "cpu"} | self.settings
        model = self.model if isinstance(self.model, str) else self.model()
        return ls.measure(model, list(self.tasks), output=str(output), **settings)


def _still_model() -> Any:
    """A model whose third loop does nothing: every scale of that update has the same utility."""
    generator = torch.Generator().manual_seed(5)
    words = torch.randn(32, 16, generator=generator, dtype=torch.float64)
    turn = torch.randn(16, 16, generator=generator, dtype=torch.float64) / 8
    return ls.wrap(
        embed=lambda ids: words[ids],
        step=lambda h, depth: h + (0.0 if depth == 2 else 2.0) * torch.tanh(h @ turn),
        head=words,
        trained_depth=2,
        name="still",
    )


_TIES = ls.Task.from_ids(
    prompts=[[1, 2], [3], [4, 5, 6], [7]],
    options=[[[8, 9], [8, 9], [10]], [[11], [12, 13]], [[14], [15], [15]], [[16, 17], [18], [16, 17]]],
    answers=[1, 0, 2, 2],
    name="ties",
)


RUNS = (
    GoldenRun(
        "ouro-grid",
        "toy-ouro",
        ("arithmetic",),
        {"transitions": "1-5", "depths": "1-8", "limit": 8, "scales_to": 2},
    ),
    GoldenRun(
        "ouro-full", "toy-ouro", ("stories",), {"transitions": "4,5", "level": "full", "paths": True, "limit": 4}
    ),
    GoldenRun(
        "options",
        "toy-ouro",
        ("arithmetic-mc",),
        {"transitions": "3-5", "depths": "0-8", "limit": 12, "num_fewshot": 1, "share_context": True},
    ),
    GoldenRun("ties", _still_model, (_TIES,), {"transitions": "1-4", "level": "full", "trace": True, "lens": 3}),
    GoldenRun(
        "ouro-inside",
        "toy-ouro",
        ("arithmetic-mc", "arithmetic"),
        {"model_args": "inside=3", "transitions": "3,4", "limit": 4},
    ),
    GoldenRun("huginn-grid", "toy-huginn", ("arithmetic",), {"transitions": "2-4", "depths": "1-6", "limit": 5}),
    GoldenRun("huginn-full", "toy-huginn", ("arithmetic-mc",), {"transitions": [3], "level": "full", "limit": 2}),
    GoldenRun(
        "paper",
        "toy-ouro",
        ("arithmetic",),
        {"transitions": [4], "depths": "1-6", "level": "full", "limit": 8, "protocol": "paper"},
    ),
    GoldenRun("paper-huginn", "toy-huginn", ("stories",), {"transitions": [3], "limit": 4, "protocol": "paper"}),
    GoldenRun(
        "certify",
        "toy-ouro",
        ("arithmetic-mc",),
        {"transitions": [4], "level": "quick", "certify": True, "limit": 3},
    ),
    GoldenRun(
        "trace",
        "toy-ouro",
        ("arithmetic",),
        {"transitions": "4,5", "depths": "1-6", "tokens": True, "trace": True, "lens": 5, "limit": 8},
    ),
    GoldenRun(
        "trace-huginn",
        "toy-huginn",
        ("arithmetic",),
        {"transitions": [3], "tokens": True, "trace": True, "limit": 3, "level": "quick"},
    ),
)


def frames_of(run: ls.Run) -> dict[str, pl.DataFrame]:
    """Every stored table of a run; outcomes are names."""
    return {table.name: run.read(table.name) for table in run.manifest.tables()}


def studies_of(run: ls.Run) -> dict[str, dict[str, list[Any]]]:
    """Every study table that has rows, as columns: intervals stand in columns of their own."""
    found = {}
    for name in TABLES:
        frame = run.table(name).to_polars()
        if len(frame):
            found[name] = frame.to_dict(as_series=False)
    return found
