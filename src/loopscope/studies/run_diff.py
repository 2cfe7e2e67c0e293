"""`loopscope diff` and `loopscope.diff`: two runs on the same questions, every difference with a paired interval.

Differences are second run minus first. Both runs' statistics are taken on the same resampled questions, so that what
makes a question hard or easy for both cancels.
"""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import polars as pl

from loopscope.errors import LoopscopeError, setting, shown
from loopscope.stats import Bootstrap, Difference, Estimate, Interval, Mean, OfSums, Ratio
from loopscope.store import StoredRun
from loopscope.store.manifest import DEEPEST, differences
from loopscope.store.schema import ends_of, parse_transitions
from loopscope.studies.conditions import Condition, printable, run_labels, shortened, title
from loopscope.studies.declare import TASK, UPDATE, Column, Panel, Row, TableResult, words
from loopscope.studies.populations import notes_on
from loopscope.studies.records import Records

Source: TypeAlias = "StoredRun | str | os.PathLike[str]"

MEANS = ("gain", "slope", "quadratic", "utility_before", "utility_after")
"""Columns whose means are compared, in nats."""
NAMES = (*MEANS, "share", "accuracy")
"""`share`: finite-step failures among harmful updates; `accuracy`: right options chosen after the update."""
GROUP = ("task", "split", "transition")
KEYS = (*GROUP, "example_id", "occurrence", "scored")
ROUNDING = 1e-12
"""A difference of at most this times 1 + |value| is rounding and counts as 0."""
MOST_NAMED = 8
OPERATORS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_CONDITION = re.compile(
    r"([a-z_]+)(?:\.(low|high))?\s*([<>]=?)\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)", re.ASCII
)


class Limit(NamedTuple):
    """One condition of `--fail-if`."""

    name: str
    bound: str
    """`low` or `high` for an end of the interval; empty for the difference itself."""
    operator: str
    number: float


def diff(
    first: Source,
    second: Source,
    *,
    tasks: str | Sequence[str] | None = None,
    transitions: str | int | None = None,
    bootstrap: Bootstrap | None = None,
) -> TableResult:
    """Compare two runs on the questions that both have measured.

    Args:
        first: a run directory, or an opened run.
        second: another one; model, revision, arithmetic and protocol may differ.
        tasks: only these tasks, by name.
        transitions: only these updates t → t+1, e.g. `4` or `"3-6,8"`.
        bootstrap: resamples, seed and level; the paper's by default.

    Raises:
        LoopscopeError: there is nothing to pair.
    """
    settings = bootstrap or Bootstrap()
    runs = [run if isinstance(run, StoredRun) else StoredRun(run) for run in (first, second)]
    labels = [title(name) for name in run_labels(runs)]
    conditions: dict[tuple[object, ...], Condition] = {}
    frames = [_questions(run, conditions, _wanted(tasks, transitions)) for run in runs]
    joined = frames[0].join(frames[1], on=KEYS, how="full", coalesce=True, maintain_order="left_right")
    rows: list[Row] = []
    notes: list[str] = []
    for key, group in joined.group_by(GROUP, maintain_order=True):
        missing = [group[column].null_count() for column in ("gain_right", "gain")]
        alone = [f"{count} only in {name}" for count, name in zip(missing, labels, strict=True) if count]
        if alone:
            notes.append(f"not paired: {conditions[key].set_title} {conditions[key].update}: {', '.join(alone)}")
        paired = group.drop_nulls(["gain", "gain_right"])
        if paired.height:
            rows += _rows(conditions[key], (labels[0], runs[0].manifest.model.name), paired, settings)
    if not rows:
        reason = "; ".join(notes[:MOST_NAMED]) or "no question of these tasks and updates in either run"
        raise LoopscopeError(
            f"nothing to compare ({reason}): measure the same questions and updates in both"
            f" runs, with {setting('tasks')}, {setting('limit')} and {setting('transitions')}"
        )
    meaning = (
        f"differences are {labels[1]} minus {labels[0]} with {100 * settings.level:g}% paired question-bootstrap"
        " intervals; share and accuracy are fractions, the others nats"
    )
    columns = (
        *(
            TASK,
            UPDATE,
            words("Quantity", "{key}"),
            Column(labels[0], "{first:.6f}"),
            Column(labels[1], "{second:.6f}"),
        ),
        *(Column("Difference", "{difference:+.6f}", ci=True), Column("Pairs", "{pairs}")),
    )
    return TableResult(
        study="diff",
        label="tab:diff",
        title="Two runs on the same questions",
        caption=f"{labels[0]} and {labels[1]}.",
        rows=tuple(rows),
        panels=(Panel(columns),),
        notes=(meaning, *notes, *notes_on(row.condition for row in rows), *_settings(*runs)),
    )


def _wanted(tasks: str | Sequence[str] | None, transitions: str | int | None) -> pl.Expr:
    chosen = pl.lit(value=True)
    if tasks is not None:
        chosen &= pl.col("task").is_in(tasks.split(",") if isinstance(tasks, str) else tasks)
    if transitions is not None:
        numbers = parse_transitions(str(transitions), largest=DEEPEST)
        chosen &= pl.col("transition").is_in(numbers)
    return chosen


def _questions(run: StoredRun, conditions: dict[tuple[object, ...], Condition], wanted: pl.Expr) -> pl.DataFrame:
    """One row per question and update: keys, the compared columns, whether the chosen option is right.

    Questions are the same where identifier and scored text are; occurrences of an identifier that a task uses twice are
    numbered. The conditions of the run's updates are added to `conditions`.
    """
    records = Records([run])
    if not records.updates:
        raise LoopscopeError(f"{run.path}: {records.no_updates()}")
    conditions |= {(one.task, one.split, one.transition): one for one in (each.condition for each in records.updates)}
    options = pl.col("options").list.join("\n")
    text = pl.concat_str("reference", options, "correct_option", separator="\n", ignore_nulls=True)
    scored = text.str.replace_all(r"\s+", " ").str.strip_chars()
    rows = ("task", "split", "row")
    after = run.depths.select(*rows, "chosen_option", after="depth")
    return (
        run.records.filter(wanted)
        .sort("row")
        .join(run.examples.select(*rows, "correct_option", scored=scored), on=rows, maintain_order="left")
        .with_columns(after=ends_of(pl.col("transition"))[1])
        .join(after, on=(*rows, "after"), how="left", maintain_order="left")
        .select(
            *(*GROUP, "example_id", "scored", *MEANS),
            occurrence=pl.int_range(pl.len()).over(*GROUP, "example_id"),
            right=(pl.col("chosen_option") == pl.col("correct_option")).cast(pl.Float64),
        )
    )


def _rows(condition: Condition, origin: tuple[str, str], paired: pl.DataFrame, bootstrap: Bootstrap) -> Iterable[Row]:
    first, second = (_statistics(paired, side) for side in ("", "_right"))
    names = [name for name in first if name in second]
    found = bootstrap.estimate({name: Difference(first[name], second[name]) for name in names})
    for name in names:
        one, two = first[name].value(), second[name].value()
        values = {"first": one, "second": two, "difference": _without_rounding(found[name], one, two)}
        about = dict(zip(("first_run", "first_model"), origin, strict=True))
        yield Row(condition, name, {**about, **values, "pairs": paired.height})


def _statistics(paired: pl.DataFrame, side: str) -> dict[str, OfSums]:
    columns = {name: paired[name + side].cast(pl.Float64).to_numpy() for name in MEANS}
    found: dict[str, OfSums] = {name: Mean(values) for name, values in columns.items()}
    harmful = columns["gain"] < 0
    found["share"] = Ratio(harmful & (columns["slope"] > 0), harmful)
    if not paired[f"right{side}"].null_count():
        found["accuracy"] = Mean(paired[f"right{side}"])
    return found


def _without_rounding(found: Estimate, *values: float | None) -> Estimate:
    """The estimate with 0 in place of whatever is no larger than rounding of the values."""
    margin = ROUNDING * (1 + max(abs(value or 0.0) for value in values))

    def kept(number: float) -> float:
        return number if abs(number) > margin else 0.0

    if found.value is None:
        return found
    ends = found.interval
    return Estimate(kept(found.value), found.n, ends and Interval(kept(ends.low), kept(ends.high), ends.undefined))


def _settings(first: StoredRun, second: StoredRun) -> list[str]:
    """The settings in which two runs differ."""
    found = [
        f"{name} ({' → '.join(shortened(printable(str(value)), 20) for value in values)})"
        for name, *values in differences(first.manifest, second.manifest)
    ]
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return [f"settings that differ: {', '.join(found[:MOST_NAMED])}{more}"] if found else []


def parse_limits(given: Sequence[str]) -> list[Limit]:
    """Conditions such as `share > 0.02` or `gain.high < 0`, separated by commas."""
    found = []
    for condition in (part.strip() for text in given for part in text.split(",")):
        match = _CONDITION.fullmatch(condition)
        if match is None or match[1] not in NAMES or not math.isfinite(float(match[4])):
            raise LoopscopeError(
                f"{setting('fail_if')}: expected NAME OP NUMBER, such as 'share > 0.02' or 'gain.high < 0', got"
                f" {shown(condition)}; NAME is one of {', '.join(NAMES)}, OP one of {' '.join(OPERATORS)}"
            )
        found.append(Limit(match[1], match[2] or "", match[3], float(match[4])))
    return found


def checks(table: TableResult, limits: Iterable[Limit]) -> list[tuple[str, bool | None]]:
    """Every condition on every update, in words, and whether it is met; None where the difference has no value."""
    found = []
    for limit in limits:
        rows = [row for row in table.rows if row.key == limit.name]
        if not rows:
            raise LoopscopeError(f"{setting('fail_if')}: {limit.name} is not in both runs: leave it out")
        for row in rows:
            difference = row["difference"]
            value = getattr(difference.interval, limit.bound, None) if limit.bound else difference.value
            met = None if value is None else OPERATORS[limit.operator](value, limit.number)
            written = f"{limit.name}{limit.bound and '.'}{limit.bound} {limit.operator} {limit.number:g}"
            verdict = "not decided: no value" if met is None else f"{value:+g}, {'met' if met else 'not met'}"
            found.append((f"{written} at {row.condition.set_title} {row.condition.update}: {verdict}", met))
    return found
