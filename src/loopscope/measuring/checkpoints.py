"""Several models in one command: names separated by commas, or a pattern of folders."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from loopscope.errors import LoopscopeError, setting, shown, text
from loopscope.measuring.config import MeasureConfig
from loopscope.store.run import is_run
from loopscope.training_steps import step_order

LONGEST_NAME = 200
"""Characters of a run's folder."""
_PATTERN = re.compile(r"[*?\[]")


def configurations(
    given: Mapping[str, Any], make: Callable[[dict[str, Any]], MeasureConfig] = lambda given: MeasureConfig(**given)
) -> list[MeasureConfig]:
    """The configuration of each model of a text or a list; each of several has a folder of its own in the output."""
    model = given.get("model")
    listed = list(model) if isinstance(model, list | tuple) else [model]
    names = [name for each in listed for name in model_names(text("model", each))]
    if len(names) == 1:
        return [make({**given, "model": names[0]})]
    if given.get("output") is None:
        raise LoopscopeError(f"{len(names)} models need a folder for their runs: give {setting('output')}")
    output = Path(text("output", given["output"]))
    if is_run(output):
        raise LoopscopeError(
            f"{output} is a run directory, and {len(names)} models need a folder of runs: choose another"
            f" {setting('output')}"
        )
    folders = _folders(names)
    return [make({**given, "model": name, "output": output / folder}) for name, folder in folders.items()]


def model_names(given: str) -> list[str]:
    """The models that a text names, the folders of a pattern in the order of their training steps.

    >>> model_names("toy-ouro, toy-huginn")
    ['toy-ouro', 'toy-huginn']
    """
    if _exists(given):
        return [given]
    pieces = [text("model", piece.strip()) for piece in given.split(",")]
    return [name for piece in pieces for name in (_fitting(piece) if _is_pattern(piece) else [piece])]


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):
        return False


def _is_pattern(name: str) -> bool:
    return _PATTERN.search(name) is not None and not _exists(name)


def _fitting(pattern: str) -> list[str]:
    """The folders that fit a pattern."""
    folders = sorted(filter(os.path.isdir, glob.glob(os.path.expanduser(pattern))), key=step_order)
    if not folders:
        raise LoopscopeError(f"no folder fits {setting('model', pattern)}: name folders that exist")
    return [path if "/" in path else f"./{path}" for path in folders]


def _folders(names: Sequence[str]) -> dict[str, str]:
    """Folders for the runs: the last parts of the names, or the whole of them where these are the same."""
    for parts in ([PurePath(name).name for name in names], names):
        folders = [re.sub(r"[^\w.@=+-]+", "-", part).strip("-.")[:LONGEST_NAME] or "model" for part in parts]
        if len({folder.lower() for folder in folders}) == len(names):
            return dict(zip(names, folders, strict=True))
    raise LoopscopeError(f"{setting('model')} names {shown(names[-1])} and another of the same name: name each once")
