"""Which conditions of some runs a study can use, the table made of them, and what to tell about the others."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import polars as pl

from loopscope.errors import setting
from loopscope.stats import Bootstrap
from loopscope.store import Level
from loopscope.studies.conditions import Condition, Weights, title
from loopscope.studies.paper_numbers import PAPER_COLUMNS
from loopscope.studies.records import Records, Updates
from loopscope.studies.result import Column, Panel, Row, TableResult

R = TypeVar("R", bound=Row)


@dataclass(frozen=True)
class Subject:
    """What a study is about, where that is not every condition."""

    includes: Callable[[Condition], bool]
    words: str


_UNFINISHED = " is unfinished: "

OPTION_TASKS = Subject(lambda condition: condition.kind == "options", "option tasks")
CONCAVE_PATHS = Subject(lambda condition: condition.concave, "solution tasks of models with an affine readout")


@dataclass(frozen=True)
class Selection:
    """Conditions with what a study needs, and notes for the reader."""

    kept: tuple[Updates, ...]
    notes: tuple[str, ...]

    def table(
        self,
        study: str,
        rows_of: Callable[[Updates, Bootstrap], R | list[R]],
        bootstrap: Bootstrap | None,
        *,
        label: str,
        title: str,
        caption: str,
        columns: tuple[Column, ...] = (),
        panels: tuple[Panel, ...] = (),
        notes: tuple[str, ...] = (),
        key_names: Mapping[str, str] | None = None,
    ) -> TableResult[R]:
        """A table with the row or rows of every condition, in one panel of `columns` or in several `panels`."""
        rows: list[R] = []
        for updates in self.kept:
            made = rows_of(updates, bootstrap or Bootstrap())
            rows += made if isinstance(made, list) else [made]
        panels = panels or (Panel(columns),)
        return TableResult(study, label, title, caption, tuple(rows), panels, self.notes + notes, key_names or {})


def select(records: Records, *columns: str, level: Level = Level.QUICK, about: Subject | None = None) -> Selection:
    """The conditions in which every question has all of `columns`.

    Args:
        records: the runs.
        columns: columns of `questions` that the study reads.
        level: the level of measurement that fills them, for the note about conditions without.
        about: which conditions the study is about at all; the others are left out without a word, unless that is all.
    """
    of_interest = [updates for updates in records.updates if about is None or about.includes(updates.condition)]
    kept = tuple(updates for updates in of_interest if updates.has(*columns))
    notes = [*notes_on(updates.condition for updates in kept), *notes_on_bounds(kept, columns)]
    missing: dict[str, dict[str, None]] = {}
    for updates in of_interest:
        if not updates.has(*columns):
            reason = _missing(updates, columns, level)
            missing.setdefault(reason, {})[f"{updates.condition.model_title} {updates.condition.set_title}"] = None
    notes += [f"without the columns of this study: {', '.join(names)} ({reason})" for reason, names in missing.items()]
    if not of_interest and about:
        notes.append(records.nothing(f"this study is about {about.words}, and these runs hold none"))
    elif not of_interest:
        notes.append(no_updates(records))
    return Selection(kept, tuple(notes))


@dataclass(frozen=True)
class Beside:
    """Conditions whose run holds another table, with its rows about each."""

    selection: Selection
    frames: Mapping[Condition, pl.DataFrame]


def select_beside(records: Records, table: str, asking: str) -> Beside:
    """The conditions that have rows in a table; `asking` is the option of `measure` that stores them.

    Args:
        records: the runs.
        table: the table.
        asking: what to measure with, in the reader's words.
    """
    chosen = select(records)
    found = {updates.condition: records.beside(table, updates.condition) for updates in chosen.kept}
    frames = {condition: frame for condition, frame in found.items() if frame is not None}
    kept = tuple(updates for updates in chosen.kept if updates.condition in frames)
    without = dict.fromkeys(f"{c.model_title} {c.set_title}" for c in found if c not in frames)
    about_all = notes_on(updates.condition for updates in chosen.kept)
    notes = [*notes_on(updates.condition for updates in kept), *(n for n in chosen.notes if n not in about_all)]
    if without:
        notes.append(f"without the columns of this study: {', '.join(without)} (measure with {asking})")
    return Beside(Selection(kept, tuple(notes)), frames)


def no_updates(records: Records) -> str:
    """The note of a study whose runs hold no updates."""
    return records.nothing(f"these runs hold no updates: measure with {setting('transitions', 4)}")


def no_depths(records: Records) -> str:
    """The note of a study whose runs hold a single depth."""
    return records.nothing(f"no run holds two depths: measure with {setting('depths', '1-8')}")


def _missing(updates: Updates, columns: tuple[str, ...], level: Level) -> str:
    if not Level(updates.condition.level).includes(level):
        return f"measure with {setting('level', level.value)}"
    return f"no value of {', '.join(name for name in columns if not updates.has(name))} for some of its questions"


def unfinished(notes: Iterable[str]) -> list[str]:
    """Those of some notes that tell of an unfinished run."""
    return [note for note in notes if _UNFINISHED in note]


def notes_on_bounds(kept: Iterable[Updates], columns: Iterable[str] = PAPER_COLUMNS) -> tuple[str, ...]:
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
