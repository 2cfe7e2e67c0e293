"""Which conditions of some runs a study can use, and what to tell about the others."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from loopscope.studies.conditions import Condition, Weights
from loopscope.studies.records import Records, Updates

LEVELS = {"grid": "measure with --level grid", "full": "measure with --level full"}


@dataclass(frozen=True)
class Selection:
    """Conditions with what a study needs, and notes for the reader."""

    kept: tuple[Updates, ...]
    notes: tuple[str, ...]


def select(
    records: Records,
    *columns: str,
    level: str = "",
    where: Callable[[Condition], bool] = lambda condition: True,
) -> Selection:
    """The conditions in which every question has all of `columns`.

    Args:
        records: the runs.
        columns: columns of `questions` that the study reads.
        level: the level of measurement that fills them, for the note about conditions without.
        where: which conditions the study is about at all; the others are left out without a word.
    """
    of_interest = [updates for updates in records.updates if where(updates.condition)]
    kept = tuple(updates for updates in of_interest if updates.has(*columns))
    missing = [updates.condition for updates in of_interest if not updates.has(*columns)]
    notes = list(notes_on(updates.condition for updates in kept))
    if missing:
        names = ", ".join(dict.fromkeys(f"{condition.model_title} {condition.set_title}" for condition in missing))
        notes.append(f"without the columns of this table: {names} ({LEVELS.get(level, 'measure again')})")
    return Selection(kept, tuple(notes))


def notes_on(conditions: Iterable[Condition]) -> tuple[str, ...]:
    """What a reader must know of these conditions: weights that are no published model's, unfinished runs."""
    notes: dict[str, None] = {}
    for condition in conditions:
        if condition.weights is Weights.RANDOM:
            notes[f"{condition.model} has random weights: its numbers describe no trained model"] = None
        if condition.weights is Weights.TOY:
            notes[f"{condition.model} is a small model that ships with loopscope, not one of the paper's"] = None
        if condition.n < condition.expected:
            progress = f"{condition.n} of {condition.expected} questions"
            notes[f"{condition.run} is unfinished: {progress} of {condition.set_title}"] = None
    return tuple(notes)
