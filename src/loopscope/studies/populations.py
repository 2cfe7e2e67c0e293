"""Which conditions of some runs a table is about, and what its reader must know of them and of those left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from loopscope.errors import setting
from loopscope.store import Level
from loopscope.studies.conditions import Condition, Weights, title
from loopscope.studies.records import PAPER_COLUMNS, Records, Updates


@dataclass(frozen=True)
class Selection:
    """Groups with what a study needs, and notes for the reader."""

    kept: tuple[Any, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Population:
    """How a study chooses its groups among some records."""

    choose: Callable[[Records], Selection]
    needs: str
    """What a run must hold: a level of measurement, or an option of `measure`."""

    def __call__(self, records: Records) -> Selection:
        """The groups and what should be said of them."""
        return self.choose(records)


@dataclass(frozen=True)
class Subject:
    """What a study is about, where that is not every condition."""

    includes: Callable[[Condition], bool]
    words: str


OPTION_TASKS = Subject(lambda condition: condition.kind == "options", "option tasks")
CONCAVE_PATHS = Subject(lambda condition: condition.concave, "solution tasks of models with an affine readout")
_UNFINISHED = " is unfinished: "


def updates_with(*columns: str, level: Level = Level.QUICK, about: Subject | None = None) -> Population:
    """The updates of conditions in which every question has all of these columns of `questions`.

    Args:
        columns: what the study reads.
        level: the level of measurement that fills them.
        about: which conditions the study is about at all; the others are left out without a word, unless that is all.
    """
    return Population(lambda records: select(records, *columns, level=level, about=about), level.value)


def select(records: Records, *columns: str, level: Level = Level.QUICK, about: Subject | None = None) -> Selection:
    """The conditions in which every question has all of `columns`; see `updates_with`."""
    of_interest = [updates for updates in records.updates if about is None or about.includes(updates.condition)]
    kept = tuple(updates for updates in of_interest if updates.has(*columns))
    notes = [*notes_on(updates.condition for updates in kept), *notes_on_bounds(kept, columns)]
    missing: dict[str, dict[str, None]] = {}
    for updates in of_interest:
        if not updates.has(*columns):
            lacking = ", ".join(name for name in columns if not updates.has(name))
            measured = Level(updates.condition.level).includes(level)
            how = (
                f"no value of {lacking} for some of its questions"
                if measured
                else f"measure with {setting('level', level.value)}"
            )
            missing.setdefault(how, {})[name_of(updates.condition)] = None
    notes += [f"without the columns of this study: {', '.join(names)} ({how})" for how, names in missing.items()]
    if not of_interest:
        only = f"this study is about {about.words}, and these runs hold none" if about else ""
        notes.append(records.nothing(only) if about else no_updates(records))
    return Selection(kept, tuple(notes))


def with_table(name: str, asking: str, needs: str) -> Population:
    """The updates that have rows in another table, which `measure` stores where it is asked for with `asking`."""

    def choose(records: Records) -> Selection:
        chosen = select(records)
        kept = tuple(updates for updates in chosen.kept if records.other_table(name, updates.condition) is not None)
        left_out = {updates.condition for updates in chosen.kept} - {updates.condition for updates in kept}
        without = dict.fromkeys(name_of(updates.condition) for updates in chosen.kept if updates.condition in left_out)
        about_all = notes_on(updates.condition for updates in chosen.kept)
        notes = [*notes_on(updates.condition for updates in kept), *(n for n in chosen.notes if n not in about_all)]
        if without:
            notes.append(f"without the columns of this study: {', '.join(without)} (measure with {asking})")
        return Selection(kept, tuple(notes))

    return Population(choose, needs)


def groups_of(find: Callable[[Records], Iterable[Any]], missing: Callable[[Records], str], needs: str) -> Population:
    """Other groups than updates, such as depth sweeps; `missing` says why there is none."""

    def choose(records: Records) -> Selection:
        kept = tuple(find(records))
        notes = notes_on(group.condition for group in kept)
        return Selection(kept, notes if kept else (*notes, missing(records)))

    return Population(choose, needs)


def no_updates(records: Records) -> str:
    """The note of a study whose runs hold no updates."""
    return records.nothing(f"these runs hold no updates: measure with {setting('transitions', 4)}")


def no_depths(records: Records) -> str:
    """The note of a study whose runs hold a single depth."""
    return records.nothing(f"no run holds two depths: measure with {setting('depths', '1-8')}")


def no_trace(records: Records) -> str:
    """The note of a study whose runs hold no trace."""
    wanted = f"{setting('trace', True)} and {setting('depths')} up to 2 or more"
    return records.nothing(f"no run holds a trace of two loops: measure with {wanted}")


SWEEPS = groups_of(lambda records: records.sweeps, no_depths, "quick")
TRACES = groups_of(lambda records: records.traces(), no_trace, "--trace")


def name_of(condition: Condition) -> str:
    """Model and evaluation set."""
    return f"{condition.model_title} {condition.set_title}"


def unfinished(notes: Iterable[str]) -> list[str]:
    """Those of some notes that say that a run is unfinished."""
    return [note for note in notes if _UNFINISHED in note]


def notes_on_bounds(kept: Sequence[Updates], columns: Iterable[str] = PAPER_COLUMNS) -> tuple[str, ...]:
    """Whose bounds these are, where the columns that a study reads are others under the paper's protocol."""
    if not PAPER_COLUMNS & {*columns} or not any(updates.condition.bounds == "paper" for updates in kept):
        return ()
    return (f"envelopes, brackets and residuals as in the paper ({setting('protocol', 'paper')})",)


def notes_on(conditions: Iterable[Condition]) -> tuple[str, ...]:
    """What a reader must know of these conditions: weights that are no published model's, unfinished runs."""
    notes: dict[str, None] = {}
    for condition in conditions:
        if condition.weights is Weights.RANDOM:
            notes[f"{title(condition.model)} has random weights: its numbers describe no trained model"] = None
        if condition.weights is Weights.TOY:
            notes[f"{condition.model_title} is a small model that ships with loopscope, not one of the paper's"] = None
        if not condition.finished:
            progress = f"{condition.n} of {condition.expected} questions"
            notes[f"{condition.run}{_UNFINISHED}{progress} of {condition.set_title}"] = None
    return tuple(notes)
