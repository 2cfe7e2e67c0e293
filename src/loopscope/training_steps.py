"""The training step of a model in a series: as a run holds it, or as the name of its checkpoint contains it."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from loopscope.errors import LoopscopeError

if TYPE_CHECKING:
    from loopscope.store import Manifest

_MOST_DIGITS = 12
_STEP = re.compile(
    r"(?:^|[^a-z])(?:global_?step|step|checkpoint|ckpt|iteration|iter)[-_=.]?(\d{1,12})([km]?)(?![a-z\d])",
    re.IGNORECASE | re.ASCII,
)
_FACTORS = {"": 1, "k": 1_000, "m": 1_000_000}


def step_in(name: str) -> int | None:
    """The training step that a checkpoint's folder or its parent, a revision or a file name contains.

    >>> [step_in(name) for name in ("runs/step-1000", "checkpoint-200", "global_step30", "org/x@stage1-step5-tokens4B")]
    [1000, 200, 30, 5]
    >>> [step_in(name) for name in ("step-50K", "iter_0000100", "runs/0700", "step-20/hf", "ckpt=step900")]
    [50000, 100, 700, 20, 900]
    >>> [step_in(name) for name in ("main", "toy-ouro", "data/2024/model", "loop:ouro-1.4b:10-20")]
    [None, None, None, None]
    """
    folder = PurePath(name)
    if folder.name.isascii() and folder.name.isdecimal() and len(folder.name) <= _MOST_DIGITS:
        return int(folder.name)
    for part in (folder.name, folder.parent.name):
        matches = _STEP.findall(part)
        if matches:
            number, unit = matches[-1]
            return int(number) * _FACTORS[unit.lower()]
    return None


def step_order(name: str) -> tuple[bool, int, str]:
    """What sorts checkpoints: those that contain a step by it, the others after them by name."""
    step = step_in(name)
    return (step is None, step or 0, name)


def training_step(manifest: Manifest) -> int | None:
    """The step that a run was measured at, as it is stored, or as its specification contains it."""
    stored = manifest.settings.get("training_step")
    return stored if isinstance(stored, int) else step_in(manifest.model.spec)


def runs_at(path: str | os.PathLike[str]) -> list[Path]:
    """A run directory as it is; of a folder that holds run directories, these in the order of their steps."""
    from loopscope.store.run import is_run

    folder = Path(path)
    try:
        if is_run(folder) or not folder.is_dir():
            return [folder]
        inside = [entry for entry in folder.iterdir() if entry.is_dir() and is_run(entry)]
    except OSError as error:
        raise LoopscopeError(f"{folder} cannot be read: {error.strerror}") from None
    return sorted(inside, key=lambda entry: step_order(entry.name)) or [folder]
