"""`loopscope diff` and `loopscope.diff`: two runs on the same questions, every difference with a paired interval.

Differences are second run minus first. Both runs' statistics are taken on the same resampled questions, so that what
makes a question hard or easy for both cancels.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from loopscope.errors import LoopscopeError, parse_ranges, setting
from loopscope.path import Outcome
from loopscope.stats import Bootstrap, Difference, Estimate, Mean, OfSums, Statistic
from loopscope.store import StoredRun
from loopscope.store.resume import Difference as SettingDifference
from loopscope.store.resume import differences
from loopscope.studies.conditions import Condition, run_labels, title
from loopscope.studies.limits import Check, Limit, parse_limits, require_known
from loopscope.studies.metrics import CHANGED, METRICS, statistics
from loopscope.studies.pairing import PairedSet, PairedUpdate, pair
from loopscope.studies.result import COUNT, UPDATE, Column, Panel, Row, TableResult, label
from loopscope.studies.usable_conditions import notes_on

if TYPE_CHECKING:
    import polars as pl

Source: TypeAlias = "StoredRun | str | os.PathLike[str]"

LARGEST_TRANSITION = 1_000_000


@dataclass(frozen=True)
class DiffRow(Row):
    """One metric (the key) of one update; the condition is the second run's."""

    first_run: str
    first_model: str
    first: Estimate
    second: Estimate
    difference: Estimate
    """Second minus first; for `changed`, the share itself."""

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """First, second, difference and its interval as they are printed, all with the same decimals."""
        return printed(self)

    first_text = property(lambda self: self.cells[0])
    second_text = property(lambda self: self.cells[1])
    difference_text = property(lambda self: self.cells[2])
    interval_text = property(lambda self: self.cells[3])


@dataclass(frozen=True)
class ChangedQuestion:
    """A question whose outcome is another one in the second run."""

    example_id: str
    first: Outcome
    second: Outcome
    layout_sensitive: bool
    """Whether one of the two outcomes is so near to zero that another batch layout could have changed it."""


@dataclass(frozen=True)
class UpdateDiff:
    """One update: its metrics, and whose outcome changed."""

    pair: PairedUpdate
    rows: tuple[DiffRow, ...]
    changed: tuple[ChangedQuestion, ...]

    @property
    def moves(self) -> Counter[tuple[Outcome, Outcome]]:
        """How many questions went from which outcome to which other one."""
        return Counter((question.first, question.second) for question in self.changed)

    def difference(self, name: str) -> Estimate:
        """Of one metric; without a value where it is not in both runs."""
        return next(
            (row.difference for row in self.rows if row.key == name), Estimate(None, len(self.pair.first.updates))
        )


@dataclass(frozen=True)
class RunDiff:
    """Two runs on the same questions."""

    first: StoredRun
    second: StoredRun
    sets: tuple[PairedSet, ...]
    updates: tuple[UpdateDiff, ...]
    limits: tuple[Limit, ...] = ()
    level: float = 0.95

    @property
    def rows(self) -> tuple[DiffRow, ...]:
        """All metrics of all updates."""
        return tuple(row for update in self.updates for row in update.rows)

    @cached_property
    def settings(self) -> list[SettingDifference]:
        """Every setting in which the two manifests differ, by its dotted name."""
        return differences(self.first.manifest, self.second.manifest)

    @cached_property
    def checks(self) -> tuple[Check, ...]:
        """Every condition of `fail_if` on every update."""
        return self.check(self.limits)

    @property
    def failed(self) -> bool:
        """Whether any condition is met."""
        return any(check.met for check in self.checks)

    def check(self, limits: str | Sequence[str] | Sequence[Limit]) -> tuple[Check, ...]:
        """Conditions such as `"share > +0.02"`, each on every update."""
        read = tuple(limit for limit in limits if isinstance(limit, Limit)) if not isinstance(limits, str) else ()
        read = read or parse_limits(limits)  # type: ignore[arg-type]
        require_known(read, (row.key for row in self.rows))
        return tuple(
            Check(limit, update.pair.title, limit.read(difference), limit.met(difference))
            for limit in read
            for update in self.updates
            for difference in (update.difference(limit.name),)
        )

    def notes(self) -> tuple[str, ...]:
        """What a reader must know: pairing, unfinished runs, weights that are nobody's."""
        conditions = [condition for paired in self.sets for condition in _whole(paired)]
        return (*(paired.said() for paired in self.sets), *notes_on(conditions))

    def to_text(self) -> str:
        """For a terminal."""
        from loopscope.studies.render.run_diff import as_text

        return as_text(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything in natural units and full precision, for JSON."""
        from loopscope.studies.render.run_diff import as_dict

        return as_dict(self)

    def to_json(self) -> str:
        """The same as text."""
        import json

        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def to_polars(self) -> pl.DataFrame:
        """One row per metric and update, full precision."""
        return self.table().to_polars()

    def table(self) -> TableResult[DiffRow]:
        """The differences as a table, for any renderer."""
        names = [title(name) for name in run_labels((self.first, self.second))]
        columns = (
            label("condition.set_title", "Task"),
            UPDATE,
            label("key", "Metric"),
            Column(("first_text",), names[0], (COUNT,)),
            Column(("second_text",), names[1], (COUNT,)),
            Column(("difference_text",), "Difference", (COUNT,)),
            Column(("interval_text",), f"{100 * self.level:g}% interval", (COUNT,)),
        )
        return TableResult(
            study="diff",
            label="tab:diff",
            title="Two runs on the same questions",
            caption=f"Differences are {names[1]} minus {names[0]}, with paired question-bootstrap intervals.",
            rows=self.rows,
            panels=(Panel(columns),),
            notes=self.notes(),
        )

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        changed = sum(len(update.changed) for update in self.updates)
        return f"<RunDiff: {len(self.updates)} updates in both runs, {changed} outcomes changed; print() shows it>"

    def _repr_html_(self) -> str:
        return self.table().to_html()


def diff(
    first: Source,
    second: Source,
    *,
    tasks: str | Sequence[str] | None = None,
    transitions: str | int | Sequence[int] | None = None,
    fail_if: str | Sequence[str] | None = None,
    bootstrap: Bootstrap | None = None,
) -> RunDiff:
    """Compare two runs on the questions that both have measured.

    Args:
        first: a run directory, or an opened run.
        second: another one; model, revision, arithmetic and protocol may be others.
        tasks: only these tasks, by name; all that both runs have by default.
        transitions: only these updates t → t+1, e.g. `4`, `[3, 4]` or `"3-6"`; all that both have by default.
        fail_if: conditions on differences, such as `"share > +0.02"`; `.failed` says whether one is met.
        bootstrap: resamples, seed and level; the paper's by default.

    Raises:
        LoopscopeError: nothing can be paired, or a condition cannot be read.
    """
    limits = parse_limits(fail_if)
    resample = bootstrap or Bootstrap()
    one, other = _opened("first", first), _opened("second", second)
    sets = pair(one, other, _names(tasks), _transitions(transitions))
    updates = tuple(_diff_update(each, resample) for paired in sets for each in paired.updates)
    result = RunDiff(one, other, sets, updates, limits, resample.level)
    require_known(limits, (row.key for row in result.rows))
    return result


def _opened(name: str, source: Source) -> StoredRun:
    if isinstance(source, StoredRun):
        return source
    if not isinstance(source, str | os.PathLike):
        raise LoopscopeError(f"{setting(name, source)} is no run: name a folder that `loopscope measure` wrote")
    return StoredRun(source)


def _names(given: str | Sequence[str] | None) -> tuple[str, ...]:
    pieces = given.split(",") if isinstance(given, str) else given or ()
    if not all(isinstance(piece, str) for piece in pieces):
        raise LoopscopeError(f"{setting('tasks', given)}: give names of tasks")
    return tuple(piece.strip() for piece in pieces if piece.strip())


def _transitions(given: str | int | Sequence[int] | None) -> tuple[int, ...]:
    if given is None or given == "":
        return ()
    written = given if isinstance(given, str) else ",".join(map(str, [given] if isinstance(given, int) else given))
    return parse_ranges(written, "transitions", largest=LARGEST_TRANSITION, most=1_000)


def _diff_update(paired: PairedUpdate, bootstrap: Bootstrap) -> UpdateDiff:
    first, second = statistics(paired.first), statistics(paired.second)
    wanted: dict[tuple[str, str], Statistic] = {}
    for name in METRICS:
        if name in first and name in second:
            wanted |= {(name, "first"): first[name], (name, "second"): second[name]}
            wanted[name, "difference"] = Difference(first[name], second[name])
    outcomes = paired.first.updates.outcome, paired.second.updates.outcome
    other: OfSums = Mean(outcomes[0] != outcomes[1])
    wanted[CHANGED, "difference"] = other
    estimates = bootstrap.estimate(wanted)
    nothing = Estimate(None, other.size)
    here = paired.first.updates.condition
    rows = tuple(
        DiffRow(
            paired.second.updates.condition,
            name,
            first_run=here.run,
            first_model=here.model,
            first=estimates.get((name, "first"), nothing),
            second=estimates.get((name, "second"), nothing),
            difference=estimates[name, "difference"],
        )
        for name in dict.fromkeys(name for name, _ in wanted)
    )
    return UpdateDiff(paired, rows, tuple(_changed(paired)))


def _changed(paired: PairedUpdate) -> Iterator[ChangedQuestion]:
    first, second = paired.first.updates, paired.second.updates
    near = first.layout_sensitive | second.layout_sensitive
    for place in np.flatnonzero(first.outcome != second.outcome).tolist():
        codes = int(first.outcome[place]), int(second.outcome[place])
        yield ChangedQuestion(first.ids[place], Outcome(codes[0]), Outcome(codes[1]), bool(near[place]))


def _whole(paired: PairedSet) -> tuple[Condition, Condition]:
    return paired.first, paired.second


def printed(row: DiffRow) -> tuple[str, str, str, str]:
    """First, second, difference and interval of a row, with decimals that show two digits of the interval's width."""
    share = row.key not in METRICS or METRICS[row.key].share
    factor = 100.0 if share else 1.0
    decimals = 1 if share else _decimals(row)
    unit = "%" if share else ""

    def text(value: float | None, sign: bool = False) -> str:
        return "—" if value is None else f"{value * factor:{'+' if sign else ''}.{decimals}f}".replace("-", "−") + unit

    interval = row.difference.interval
    signed = row.key != CHANGED
    ends = f"{text(interval.low, signed)} to {text(interval.high, signed)}" if interval else "—"
    return text(row.first.value), text(row.second.value), text(row.difference.value, signed), ends


MOST_DECIMALS = 9


def _decimals(row: DiffRow) -> int:
    """Two digits of the narrowest thing that is said: the interval's width, else the difference, else the value."""
    interval = row.difference.interval
    sizes = [
        interval.high - interval.low if interval else 0.0,
        abs(row.difference.value or 0.0),
        abs(row.second.value or 0.0),
    ]
    size = next((size for size in sizes if size > 0), 1.0)
    return int(min(max(1 - np.floor(np.log10(size)), 2), MOST_DECIMALS))
