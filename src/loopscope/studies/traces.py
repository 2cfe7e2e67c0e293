"""Traces of runs, paired: the questions that a policy is fitted on, and those that it is tested on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from loopscope.control.comparison import split_by_question
from loopscope.control.trace import Trace
from loopscope.store import StoredRun
from loopscope.studies.conditions import Condition
from loopscope.studies.records import Records, of_set

Source: TypeAlias = "tuple[StoredRun, Condition]"


@dataclass(frozen=True)
class TracePair:
    """One model and task.

    Attributes:
        condition: the test questions.
        train: what is fitted on.
        test: what is tested on.
        trained_depth: of the model, where it is known.
        sources: the runs and conditions of both.
        note: how the questions were divided, where there was one split alone.
    """

    condition: Condition
    train: Trace
    test: Trace
    trained_depth: int | None
    sources: tuple[Source, Source]
    note: str | None = None


def trace_pairs(records: Records) -> Iterator[TracePair]:
    """By model and task: the train split beside each other split; halves of the questions where there is but one."""
    held = [(run, condition) for run, condition in records.conditions() if "trace" in _tables(run)]
    for run, condition in held:
        same = [
            (other, found)
            for other, found in held
            if (found.model, found.task) == (condition.model, condition.task)
            and other.manifest.model.weights == run.manifest.model.weights
        ]
        splits = {found.split for _, found in same}
        if condition.split == "train" and splits != {"train"}:
            continue
        trace = _trace(run, condition)
        if trace is None:
            continue
        depth = run.manifest.model.trained_depth
        source = next(((other, found) for other, found in same if found.split == "train"), None)
        train = None if source is None or condition.split == "train" else _trace(*source)
        if train is not None and source is not None:
            yield TracePair(replace(condition, n=trace.questions), train, trace, depth, (source, (run, condition)))
        elif trace.questions > 1:
            first, second = split_by_question(trace)
            note = f"{condition}: no other split, so every second question was fitted on and the others tested"
            yield TracePair(replace(condition, n=second.questions), first, second, depth, ((run, condition),) * 2, note)


def _tables(run: StoredRun) -> set[str]:
    return {table.name for table in run.manifest.tables()}


def _trace(run: StoredRun, condition: Condition) -> Trace | None:
    frame = run.scan("trace").filter(of_set(condition)).collect()
    if not frame.height:
        return None
    if condition.kind != "options":
        return Trace.of(frame)
    right = run.examples.filter(of_set(condition)).select("row", "correct_option")
    return Trace.of(frame, dict(right.iter_rows()))
