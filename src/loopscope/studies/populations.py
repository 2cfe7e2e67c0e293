"""Which groups of records a table is about, and what its reader must know of them and of those left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from loopscope.errors import setting
from loopscope.store import Level
from loopscope.studies.conditions import Condition, Weights, title
from loopscope.studies.records import Records, Updates

_UNFINISHED = " is unfinished: "


@dataclass(frozen=True)
class Selection:
    """Groups with what a study needs, and notes for the reader."""

    kept: tuple[Any, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Population:
    """How a study chooses its groups among some records.

    Attributes:
        choose: the groups, and what should be said of them and of those left out.
        needs: what a run must hold: a level of measurement, or an option of `measure`.
    """

    choose: Callable[[Records], Selection]
    needs: str


@dataclass(frozen=True)
class Subject:
    """What a study is about, where that is not every condition."""

    includes: Callable[[Condition], bool]
    words: str

    def none_here(self, records: Records) -> str:
        """The note of a study whose runs hold nothing of the kind."""
        return records.nothing(f"this study is about {self.words}, and these runs hold none")


OPTION_TASKS = Subject(lambda condition: condition.kind == "options", "option tasks")
AFFINE = Subject(lambda condition: condition.affine, "models with an affine readout")
CONCAVE_PATHS = Subject(lambda condition: condition.concave, "solution tasks of models with an affine readout")


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
    if not of_interest:
        return Selection((), (about.none_here(records) if about else records.no_updates(),))
    kept = tuple(updates for updates in of_interest if updates.has(*columns))
    missing: dict[str, dict[str, None]] = defaultdict(dict)
    for updates in (updates for updates in of_interest if updates not in kept):
        how = f"measure with {setting('level', level.value)}"
        if Level(updates.condition.level).includes(level):
            lacking = ", ".join(name for name in columns if not updates.has(name))
            how = f"no value of {lacking} for some of its questions"
        missing[how][name_of(updates.condition)] = None
    about_kept = (*notes_on(updates.condition for updates in kept), *notes_on_bounds(kept, columns))
    return Selection(kept, (*about_kept, *(_without(names, how) for how, names in missing.items())))


def _without(names: Iterable[str], how: str) -> str:
    return f"without the columns of this study: {', '.join(names)} ({how})"


def with_table(name: str, asking: str, needs: str, about: Subject | None = None) -> Population:
    """The updates that have rows in another table, which `measure` stores where it is asked for with `asking`."""

    def choose(records: Records) -> Selection:
        of_interest = select(records, about=about)
        kept = tuple(each for each in of_interest.kept if records.other_table(name, each.condition) is not None)
        without = dict.fromkeys(name_of(each.condition) for each in of_interest.kept if each not in kept)
        missing = [_without(without, f"measure with {asking}")] if without else []
        notes = (*notes_on(each.condition for each in kept), *missing)
        return Selection(kept, notes if of_interest.kept else of_interest.notes)

    return Population(choose, needs)


def groups_of(find: Callable[[Records], Iterable[Any]], missing: Callable[[Records], str], needs: str) -> Population:
    """Other groups than updates, such as depth sweeps; `missing` says why there is none."""

    def choose(records: Records) -> Selection:
        kept = tuple(find(records))
        return Selection(kept, notes_on(group.condition for group in kept) if kept else (missing(records),))

    return Population(choose, needs)


def no_depths(records: Records) -> str:
    """The note of a study whose runs hold a single depth."""
    return records.nothing(f"no run holds two depths: measure with {setting('depths', '1-8')}")


SWEEPS = groups_of(lambda records: records.sweeps, no_depths, "quick")


def name_of(condition: Condition) -> str:
    """Model and evaluation set."""
    return f"{condition.model_title} {condition.set_title}"


def unfinished(notes: Iterable[str]) -> list[str]:
    """Those of some notes that say that a run is unfinished."""
    return [note for note in notes if _UNFINISHED in note]


def notes_on_bounds(kept: Sequence[Updates], columns: Iterable[str]) -> tuple[str, ...]:
    """Whose bounds these are, where a study reads columns that are others under the paper's protocol."""
    paper = any(updates.condition.bounds == "paper" for updates in kept)
    if not paper or not any(name.startswith(("fp64_", "kl_")) for name in columns):
        return ()
    return (f"envelopes, brackets and residuals as in the paper ({setting('protocol', 'paper')})",)


def notes_on(conditions: Iterable[Condition]) -> tuple[str, ...]:
    """What a reader must know of these conditions: weights that are no published model's, unfinished runs."""
    notes: dict[str, None] = {}
    for condition in conditions:
        if condition.weights is Weights.RANDOM:
            notes[f"{title(condition.model)} has random weights: its numbers describe no trained model"] = None
        if condition.weights is Weights.TOY:
            notes[f"{condition.plain_title} is a small model that ships with loopscope, not one of the paper's"] = None
        if not condition.finished:
            progress = f"{condition.n} of {condition.expected} questions"
            notes[f"{condition.run}{_UNFINISHED}{progress} of {condition.set_title}"] = None
    return tuple(notes)
