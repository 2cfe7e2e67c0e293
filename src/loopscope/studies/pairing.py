"""The questions that two runs share, brought into one order: what `loopscope diff` and the page's two runs stand on.

Questions are paired by task, split and identifier, and only where both runs score the same words: wording around them
(few-shot examples, templates) may differ, the reference solution or the options may not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from loopscope.errors import LoopscopeError, setting
from loopscope.store import StoredRun
from loopscope.studies.conditions import Condition, at
from loopscope.studies.records import DepthSweep, Floats, Records, Updates, of_set

Places = NDArray[np.int64]

NAMED = 6
"""Tasks or updates that a refusal lists."""


@dataclass(frozen=True)
class Side:
    """One run's part of a paired update."""

    updates: Updates
    correct: Floats | None
    """1 where the option chosen after the update is the right one; None for solutions and where it is not stored."""


@dataclass(frozen=True)
class PairedUpdate:
    """One update in two runs: the same questions in the same order."""

    first: Side
    second: Side

    @property
    def transition(self) -> int:
        """The update t → t+1, by its t."""
        transition = self.second.updates.condition.transition
        assert transition is not None
        return transition

    @property
    def title(self) -> str:
        """Evaluation set and update."""
        return f"{self.second.updates.condition.set_title} {self.second.updates.condition.update}"


@dataclass(frozen=True)
class PairedSet:
    """One evaluation set in two runs."""

    first: Condition
    second: Condition
    rows: tuple[Places, Places]
    """Places of the paired questions among each run's measured ones, in the order of the first run."""
    alone: tuple[int, int]
    """Questions that only the first, only the second run has."""
    other_words: int
    """Questions of one identifier whose reference or options differ."""
    updates: tuple[PairedUpdate, ...]
    """The common updates."""

    def __len__(self) -> int:
        return len(self.rows[0])

    def said(self) -> str:
        """How many questions were paired, and what was left out."""
        parts = [
            f"{count} only in the {which} run"
            for count, which in zip(self.alone, ("first", "second"), strict=True)
            if count
        ]
        if self.other_words:
            parts.append(f"{self.other_words} with another reference or other options")
        paired = f"{self.second.set_title}: {len(self)} {'question' if len(self) == 1 else 'questions'} in both runs"
        return f"{paired}; left out: {', '.join(parts)}" if parts else paired


def pair(
    first: StoredRun, second: StoredRun, tasks: Collection[str] = (), transitions: Collection[int] = ()
) -> tuple[PairedSet, ...]:
    """Every evaluation set with questions and an update in both runs.

    Args:
        first: a run.
        second: another run, of any model and protocol.
        tasks: only these tasks, by name; all by default.
        transitions: only these updates t → t+1; all by default.

    Raises:
        LoopscopeError: the runs have no task, no question or no update in common; it says which they have.
    """
    sides = [_measured(run) for run in (first, second)]
    common = [key for key in sides[0] if key in sides[1] and (not tasks or key[0] in tasks)]
    if not common:
        raise LoopscopeError(_no_task(sides, tasks))
    found: list[PairedSet] = []
    reasons: list[str] = []
    for key in common:
        one, other = sides[0][key], sides[1][key]
        shared = sorted({t for t in one if t in other and (not transitions or t in transitions)})
        if not shared:
            reasons.append(_no_update(key[0], one, other, transitions))
            continue
        made = _paired(first, second, [one[t] for t in shared], [other[t] for t in shared])
        if len(made):
            found.append(made)
        else:
            reasons.append(_no_question(key[0], made))
    if not found:
        raise LoopscopeError("; ".join(reasons))
    return tuple(found)


Measured = dict[tuple[str, str], dict[int, Updates]]


def _measured(run: StoredRun) -> Measured:
    """Updates by task and split, then by transition."""
    records = Records([run])
    if not records.updates:
        raise LoopscopeError(f"{run.path}: {records.no_updates()}")
    found: Measured = {}
    for updates in records.updates:
        condition = updates.condition
        assert condition.transition is not None
        found.setdefault((condition.task, condition.split), {})[condition.transition] = updates
    return found


def _paired(first: StoredRun, second: StoredRun, one: list[Updates], other: list[Updates]) -> PairedSet:
    conditions = one[0].condition, other[0].condition
    words = [_words(run, condition) for run, condition in zip((first, second), conditions, strict=True)]
    keys = [dict(zip(_keys(updates[0].ids), range(len(updates[0])), strict=True)) for updates in (one, other)]
    both = [key for key in keys[0] if key in keys[1]]
    same = [key for key in both if words[0][keys[0][key]] == words[1][keys[1][key]]]
    rows = tuple(np.array([places[key] for key in same], dtype=np.int64) for places in keys)
    correct = [_correct(run, condition) for run, condition in zip((first, second), conditions, strict=True)]
    return PairedSet(
        *conditions,
        rows=(rows[0], rows[1]),
        alone=(len(keys[0]) - len(both), len(keys[1]) - len(both)),
        other_words=len(both) - len(same),
        updates=tuple(
            PairedUpdate(_side(a, rows[0], correct[0]), _side(b, rows[1], correct[1]))
            for a, b in zip(one, other, strict=True)
        ),
    )


def _keys(ids: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Identifiers; a task may use one twice, and then the first belongs to the first and the second to the second."""
    seen: dict[str, int] = {}
    for name in ids:
        seen[name] = seen.get(name, -1) + 1
        yield name, seen[name]


def _words(run: StoredRun, condition: Condition) -> list[tuple[str, ...]]:
    """What is scored of every question: its reference, or its options and the right one; blanks do not count."""
    frame = run.examples.filter(of_set(condition)).sort("row").select("reference", "options", "correct_option")
    return [
        (str(right), *(" ".join(text.split()) for text in (options if options is not None else [reference or ""])))
        for reference, options, right in frame.iter_rows()
    ]


def _correct(run: StoredRun, condition: Condition) -> DepthSweep | None:
    return next((sweep for sweep in Records([run]).sweeps if sweep.condition.same_set(condition)), None)


def _side(updates: Updates, rows: Places, sweep: DepthSweep | None) -> Side:
    condition = updates.condition
    assert condition.transition is not None
    correct = None
    if sweep is not None and sweep.correct is not None:
        correct = sweep.correct[rows, sweep.depths.index(condition.transition + 1)]
    frame = updates.frame[pl.Series(rows)] if len(rows) else updates.frame.clear()
    return Side(Updates(at(condition, condition.transition, len(rows)), frame), correct)


def _no_task(sides: list[Measured], tasks: Collection[str]) -> str:
    named = [_listed(f"{task}/{split}" for task, split in side) for side in sides]
    wanted = f"{setting('tasks', ','.join(tasks))} is not in both runs" if tasks else "no task is in both runs"
    return f"{wanted}: the first has {named[0]}, the second {named[1]}; only the same questions can be compared"


def _no_update(task: str, one: dict[int, Updates], other: dict[int, Updates], transitions: Collection[int]) -> str:
    has = [_listed(f"{t}→{t + 1}" for t in sorted(side)) for side in (one, other)]
    of = f" of those asked for ({_listed(f'{t}→{t + 1}' for t in sorted(transitions))})" if transitions else ""
    return (
        f"{task}: no update{of} is in both runs: the first has {has[0]}, the second {has[1]}; "
        f"measure one that both have with {setting('transitions')}"
    )


def _no_question(task: str, made: PairedSet) -> str:
    if made.other_words:
        return f"{task}: {made.other_words} questions have the same identifier and another reference or other options"
    return (
        f"{task}: no question is in both runs ({made.alone[0]} in the first, {made.alone[1]} in the second): "
        f"measure the same rows with {setting('limit')} or {setting('ids')}"
    )


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    return ", ".join(every[:NAMED]) + (f" and {len(every) - NAMED} more" if len(every) > NAMED else "")
