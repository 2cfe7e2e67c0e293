"""Several models in one call: a pattern of folders, a list of specifications, or revisions of a hub model."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from loopscope.errors import LoopscopeError, parse_number, setting, shown, text, whole
from loopscope.store.manifest import LARGEST_STEP, step_in, step_order

LONGEST_NAME = 200
"""Characters of a run's folder."""
_PATTERN = re.compile(r"[*?\[]")


class Checkpoint(NamedTuple):
    """One of several models: its specification, the folder of its run, and its step of training if that is known."""

    spec: str
    name: str
    step: int | None


def checkpoints(model: object, revision: object = None, steps: object = None) -> list[Checkpoint] | None:
    """The models that a call names, in the order in which they are measured; None where it names one.

    Args:
        model: a list, or text with commas or a pattern; the folders of a pattern come in the order of their steps.
        revision: revisions of one hub model, as a list or with commas.
        steps: the step of each model, where names do not tell them.
    """
    named, revisions = _listed("model", model), _listed("revision", revision)
    if named is None and revisions is None:
        return None
    given = [text("model", model)] if named is None else named
    specs = [found for spec in given for found in (_fitting(spec) if _is_pattern(spec) else [spec])]
    if revisions is not None:
        if len(specs) > 1:
            raise LoopscopeError(
                f"{setting('revision')} names {len(revisions)} revisions and {setting('model')} {len(specs)} models:"
                f" name one model, or write each as NAME@REVISION"
            )
        specs = [f"{specs[0]}@{one}" for one in revisions]
    if not specs:
        raise LoopscopeError(f"{setting('model')} is an empty list: name one or more models")
    told = [step_in(spec) for spec in specs] if steps is None else _steps(steps, len(specs))
    return [Checkpoint(*each) for each in zip(specs, _run_names(specs, revisions), told, strict=True)]


def _listed(name: str, given: object) -> list[str] | None:
    """Several names; None for one, which is dealt with elsewhere."""
    if isinstance(given, list | tuple):
        return [text(name, each) for each in given]
    if not isinstance(given, str) or (name == "model" and _exists(given)):
        return None
    if name == "model":
        pieces = given.split(",")
        return [text(name, piece.strip()) for piece in pieces] if len(pieces) > 1 or _is_pattern(given) else None
    if _is_pattern(given):
        raise LoopscopeError(
            f"{setting(name, given)} is a pattern: list revisions by name, {setting(name, 'step1000,step2000')}"
        )
    return [text(name, piece.strip()) for piece in given.split(",")] if "," in given else None


def _exists(spec: str) -> bool:
    try:
        return Path(spec).exists()
    except (OSError, ValueError):
        return False


def _is_pattern(spec: str) -> bool:
    return _PATTERN.search(spec) is not None and not _exists(spec)


def _fitting(pattern: str) -> list[str]:
    """All folders that fit a pattern."""
    folders = sorted(filter(os.path.isdir, glob.glob(os.path.expanduser(pattern))), key=step_order)
    if not folders:
        raise LoopscopeError(f"no folder fits {setting('model', pattern)}: name folders that exist")
    return [path if "/" in path else f"./{path}" for path in folders]


def _steps(given: object, count: int) -> list[int | None]:
    listed = given.split(",") if isinstance(given, str) else given
    if not isinstance(listed, list | tuple):
        listed = [listed]
    if len(listed) != count:
        raise LoopscopeError(
            f"{setting('training_step')} names {len(listed)} steps for {count} models: name one for each in order"
        )
    return [one_step(each) for each in listed]


def one_step(given: object) -> int:
    """A step of training, also as text."""
    number = parse_number(given) if isinstance(given, str) else given
    if number is None:
        raise LoopscopeError(f"{setting('training_step', given)} is not a whole number: give a step, e.g. 1000")
    return whole("training_step", number, 0, LARGEST_STEP)  # type: ignore[arg-type]


def _run_names(specs: Sequence[str], revisions: Sequence[str] | None) -> list[str]:
    """Folders for the runs: revisions, or the last parts of the specifications, or the whole of them."""
    for way in (revisions or [PurePath(spec).name for spec in specs], specs):
        names = [re.sub(r"[^\w.@=+-]+", "-", name).strip("-.")[:LONGEST_NAME] or "model" for name in way]
        if len({name.lower() for name in names}) == len(names):
            return names
    twice = next(spec for spec in specs if specs.count(spec) > 1 or spec == specs[-1])
    raise LoopscopeError(f"{setting('model')} names {shown(twice)} twice: name each model once")
