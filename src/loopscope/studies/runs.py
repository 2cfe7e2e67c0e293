"""A run as a whole: in a few sentences and one table (`print(run)`, `loopscope demo`), and against another run.

The update that leads is chosen by the data: the earliest whose mean gain is below zero with its whole interval.
Differences between two runs are second minus first, on the same resampled questions, so that what makes a question hard
or easy for both cancels. Intervals resample questions.
"""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
from loopscope.studies.records import Records, Updates


@dataclass(frozen=True)
class Finding:
    """What one update did to all questions of a set, in counts.

    Attributes:
        update: `4→5`.
        kind: `solution` or `options`.
        questions: all of them.
        harmful: updates that lower the utility.
        failures: finite-step failures.
        predicted: of these, how many gain at the scale that slope and curvature predict; None where it was not
            measured.
    """

    update: str
    kind: str
    questions: int
    harmful: int
    failures: int
    predicted: int | None

    def title(self, model: str) -> str:
        """The finding in a few words."""
        where = f"{model}: loop {self.update}"
        if self.failures:
            return f"{where} goes too far on {self.failures} of {self.questions} questions"
        if self.harmful:
            return f"{where} goes the wrong way on {self.harmful} of {self.questions} questions"
        return f"{where} harms no question"

    def sentence(self, subject: str = "It") -> str:
        """What the title rests on; a subject is named where no title stands above."""
        options = self.kind == "options"
        if not self.harmful:
            what = "the right option of none" if options else "no reference"
            return f"{subject} makes {what} of the {self.questions} questions less likely."
        if options:
            said = f"{subject} makes the right option less likely for {self.harmful} of {self.questions} questions"
        else:
            said = f"{subject} makes {self.harmful} of {self.questions} references less likely"
        if not self.failures:
            return f"{said}; none of these updates starts in a helpful direction."
        share, wrong = percent(self.failures / self.harmful), self.harmful - self.failures
        said += f". {self.failures} of these updates ({share}) are finite-step failures: the direction helps, the step"
        said += " is too long."
        if wrong:
            said += f" The other {wrong} start{'s' * (wrong == 1)} in the wrong direction."
        if self.predicted is not None:
            said += f" A step of the length that slope and curvature predict recovers {self.predicted} of them."
        return said

    def meaning(self) -> str:
        """What that means, in two sentences."""
        if self.failures:
            which = "the right option" if self.kind == "options" else "the reference"
            return (
                "One more loop is a direction and a length: in these cases the direction helps and the length "
                f"overshoots, so a shorter step the same way would have made {which} more likely. Slope and curvature "
                "at the start of the step predict it, but they are made with the answer at hand: they explain "
                "failures and do not choose steps."
            )
        if self.harmful:
            return (
                "Where this loop harms, it starts in the wrong direction, so a short step the same way harms as well. "
                "It is the direction that fails here, not the length of the step."
            )
        return (
            "At this depth one more loop does no harm to any question. What more loops do is seen at the other updates."
        )


def finding(updates: Updates) -> Finding:
    """What one update did, counted over its questions.

    Recovered are failures whose gain at the predicted scale is positive, as the table `quadratic-intervention` has it:
    of the state rounded to BF16, without rounding where a run has no such column.
    """
    column = next((name for name in ("bf16_quadratic_gain", "quadratic_gain") if updates.has(name)), None)
    failures, condition = updates.finite_step, updates.condition
    recovered = None if column is None else int((updates.floats(column)[failures] > 0).sum())
    counts = len(updates), int(updates.harmful.sum()), int(failures.sum())
    return Finding(condition.update, condition.kind, *counts, recovered)


def mean_gain(updates: Updates, bootstrap: Bootstrap) -> Estimate:
    """Mean gain of the full step."""
    return bootstrap.estimate({"gain": Mean(updates.gain)})["gain"]


def clearly(estimate: Estimate) -> int:
    """1 where the whole interval lies above zero, -1 where it lies below, 0 where it does neither."""
    interval = estimate.interval
    return 0 if interval is None else (interval.low > 0) - (interval.high < 0)


def leading_update(updates: Sequence[Updates], full: Sequence[Estimate]) -> int:
    """The place of the leading update: the earliest that clearly lowers the mean utility.

    Where none does, the one with most finite-step failures, then the one with most harmful updates.

    Args:
        updates: of one evaluation set, by transition.
        full: mean gain of the full step of each.
    """
    for place, estimate in enumerate(full):
        if clearly(estimate) < 0:
            return place
    counts = [(int(each.finite_step.sum()), int(each.harmful.sum())) for each in updates]
    return max(range(len(updates)), key=lambda place: (*counts[place], place))


def first_finding(run: StoredRun, bootstrap: Bootstrap | None = None) -> Finding:
    """The finding at the leading update of a run's first task."""
    updates = Records([run]).updates
    updates = tuple(each for each in updates if each.condition.same_set(updates[0].condition))
    return finding(updates[leading_update(updates, [mean_gain(each, bootstrap or Bootstrap()) for each in updates])])


def run_lines(run: StoredRun, bootstrap: Bootstrap | None = None) -> list[str]:
    """A line for every update of a run, or for every depth of a run without updates."""
    manifest = run.manifest
    about = f"{manifest.model.name}, level {manifest.level}, states {manifest.dtypes.states}: {run.path}"
    if not manifest.transitions:
        means = run.depths.group_by("task", "depth", maintain_order=True).agg(n=pl.len(), mean=pl.mean("utility"))
        rows = [(task, depth, n, f"{mean:+.5f}") for task, depth, n, mean in means.rows()]
        return [about, *_aligned([("task", "depth", "questions", "mean utility"), *rows])]
    updates = Records([run]).updates
    heads = ("task", "update", "n", "mean gain", "harmful", "finite-step", "recovered")
    lines = [about, *_aligned([heads, *(_cells(each, bootstrap or Bootstrap()) for each in updates)])]
    if any(each.has("quadratic_gain") for each in updates):
        rounded = ", states rounded to BF16" if any(each.has("bf16_quadratic_gain") for each in updates) else ""
        lines.append(f"recovered: finite-step failures that gain at the predicted step length{rounded}")
    return lines


def _cells(updates: Updates, bootstrap: Bootstrap) -> tuple[object, ...]:
    found, gain = finding(updates), mean_gain(updates, bootstrap)
    interval = "" if gain.interval is None else f" [{gain.interval.low:+.5f}, {gain.interval.high:+.5f}]"
    recovered = "—" if found.predicted is None else f"{found.predicted} of {found.failures}"
    mean = "—" if gain.value is None else f"{gain.value:+.5f}"
    task = updates.condition.task
    return task, found.update, found.questions, mean + interval, found.harmful, found.failures, recovered


def percent(share: float) -> str:
    """A share as a percentage.

    >>> percent(0.1234), percent(1.0)
    ('12.3%', '100%')
    """
    return f"{100 * share:.1f}%".replace(".0%", "%")


def _aligned(rows: Sequence[Sequence[object]]) -> list[str]:
    widths = [max(len(str(cell)) for cell in column) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell!s:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


MEANS = ("gain", "slope", "quadratic", "utility_before", "utility_after")  # whose means are compared, in nats
# Of `--fail-if`: also finite-step failures among harmful updates, and right options chosen after the update.
NAMES = (*MEANS, "share", "accuracy")
GROUP = ("task", "split", "transition")
KEYS = (*GROUP, "example_id", "occurrence", "scored")
ROUNDING = 1e-12  # a difference of at most this times 1 + |value| is rounding and counts as 0
MOST_NAMED = 8
OPERATORS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_LIMIT = re.compile(r"([a-z_]+)(?:\.(low|high))?\s*([<>]=?)\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)", re.ASCII)
Source: TypeAlias = "StoredRun | str | os.PathLike[str]"


class Limit(NamedTuple):
    """One condition of `--fail-if`; `bound` is `low` or `high` for an end of the interval, empty for the difference."""

    name: str
    bound: str
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
            rows += _rows(conditions[key], paired, settings)
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
    about = ("diff", "tab:diff", "Two runs on the same questions", f"{labels[0]} and {labels[1]}.", tuple(rows))
    said = (meaning, *notes, *notes_on(row.condition for row in rows), *_settings(*runs))
    return TableResult(*about, panels=(Panel(columns),), notes=said)


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


def _rows(condition: Condition, paired: pl.DataFrame, bootstrap: Bootstrap) -> Iterable[Row]:
    first, second = (_statistics(paired, side) for side in ("", "_right"))
    names = [name for name in first if name in second]
    found = bootstrap.estimate({name: Difference(first[name], second[name]) for name in names})
    for name in names:
        one, two = first[name].value(), second[name].value()
        values = {"first": one, "second": two, "difference": _without_rounding(found[name], one, two)}
        yield Row(condition, name, values | {"pairs": paired.height})


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
    margin, ends = ROUNDING * (1 + max(abs(value or 0.0) for value in values)), found.interval
    value = 0.0 if found.value is not None and abs(found.value) <= margin else found.value
    low, high = (0.0 if abs(end) <= margin else end for end in ((ends.low, ends.high) if ends else (0.0, 0.0)))
    return Estimate(value, found.n, ends and Interval(low, high, ends.undefined))


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
        match = _LIMIT.fullmatch(condition)
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
