"""`loopscope check MODEL`: whether a model holds what its numbers rest on, as a table of verdicts."""

from __future__ import annotations

from typing import Annotated

import typer

from loopscope.cli.flags import Device, ModelArgs, flag
from loopscope.errors import LoopscopeError


def check(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="As `loopscope measure --model`, e.g. mine.py:build.")],
    model_args: ModelArgs = "",
    device: Device = "auto",
    dtype: Annotated[str | None, flag("--dtype", "Dtype of weights and states.")] = None,
) -> None:
    """Try a model on a small batch: shapes, determinism, padding, readout, float64, gradients, derivatives."""
    from loopscope.measuring.model_check import check as run_check

    found = run_check(model, model_args=model_args, device=device, dtype=dtype)
    print(found)
    if not found.passed:
        raise LoopscopeError(f"{found.model} would give wrong numbers: see the remedies above")
