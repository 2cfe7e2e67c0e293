"""Some batches of a pass, run and timed so that they stand for all: whole ones, parts of long ones, slow questions."""

from __future__ import annotations

import resource
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from loopscope.measuring.batch_costs import AnswerSize, BatchSize, GroupSize, Timed, spread
from loopscope.measuring.compile_clock import CompileClock
from loopscope.measuring.depth_pass import Tables
from loopscope.measuring.layout import Question
from loopscope.measuring.own_answers import OwnAnswers
from loopscope.measuring.settings import BatchPolicy
from loopscope.measuring.transfer import stacked
from loopscope.measuring.worker import Measured, Worker, release
from loopscope.store.run_directory import WorkUnit
from loopscope.store.shards import encode, to_arrow
from loopscope.store.tables import TABLES

LEAST_TIMED = 3
"""Groups of batches that are timed however long they take."""
LONG_QUESTION = 5.0
"""Seconds after which a single question counts as slow: it and ever more of them together are timed then, each once."""
LONGEST_TOGETHER = 60.0
"""Seconds that these may take, by the rate of those before."""
MORE_TOGETHER = 1.5
"""So many times as many questions tell something new."""
LONGEST_TIMED = 0.5
"""Seconds that a timed batch may take, or a fifth of the whole timing where that is more."""
GROWING = 1.5
"""Twice the questions fill a device where they take longer by this factor."""
LONGEST_PART = 10.0
"""Seconds that as much of the largest batch as is timed may take where the others are timed in shorter parts."""
IN_A_ROW = 3
"""Batches of a group, where they are short: they follow each other as in a pass."""


class Planned(NamedTuple):
    """A batch of a unit."""

    unit: WorkUnit
    questions: list[Question]
    size: BatchSize

    @classmethod
    def of(cls, unit: WorkUnit, questions: list[Question], policy: BatchPolicy) -> Planned:
        """With its size."""
        return cls(unit, questions, BatchSize.of(questions, policy))


class _Trial(NamedTuple):
    """What ever longer parts of the largest batch tell.

    By default everything is timed whole: states that a run goes on from are those of whole batches.

    Attributes:
        most: tokens that a timed batch may have.
        starting: seconds that the first of all took beyond its rate.
        in_a_row: batches that are timed together.
        slow: the shortest question, where it takes so long that it is timed once.
    """

    most: float = float("inf")
    starting: float = 0.0
    in_a_row: int = IN_A_ROW
    slow: _Ran | None = None


class _Ran(NamedTuple):
    """Batches that ran together: what was asked (own answers in the place of references), and how long it took."""

    group: Sequence[Planned]
    asked: Sequence[tuple[WorkUnit, Sequence[Question]]]
    found: Sequence[Measured[WorkUnit]]
    answering: float
    passing: float

    @property
    def seconds(self) -> float:
        """Of all of it."""
        return self.answering + self.passing


class Timer(NamedTuple):
    """What runs batches, and by which clock for how long."""

    worker: Worker
    answers: OwnAnswers | None
    policy: BatchPolicy
    clock: CompileClock
    budget: float

    def answered(self, batch: Sequence[Question]) -> Sequence[Question]:
        """Against the model's own answers, where these are asked for."""
        return batch if self.answers is None else self.answers(batch)

    def measured(self, batches: Sequence[tuple[WorkUnit, Sequence[Question]]]) -> list[Measured[WorkUnit]]:
        """As a pass runs them: the next one is launched before the last one is finished."""
        found = [step for step in self.worker.run(batches) if isinstance(step, Measured)]
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return found

    def ran(self, group: Sequence[Planned]) -> _Ran:
        """Some batches together."""
        began = self.clock.now()
        asked = [(batch.unit, self.answered(batch.questions)) for batch in group]
        between = self.clock.now()
        found = self.measured(asked)
        return _Ran(group, asked, found, between - began, self.clock.now() - between)


@dataclass
class Timings:
    """What was timed, and what it left behind.

    Attributes:
        first: batches that ran before, and how long that took (`starting`).
        loading: seconds that the very first one took beyond its rate.
        passed: the pass over groups of batches.
        answered: generating the own answers to them.
        anchors: how many of the last groups are ever longer parts of the largest batch.
        in_part: whether that was not timed whole.
        slow: whether a single question takes so long that two groups are all that was timed.
        memory: bytes at the most.
        tables: of all timed batches that have the same columns.
        questions: of all timed batches; likewise `tokens`, and `states`, the bytes of states that were kept.
    """

    first: list[Planned]
    starting: float
    loading: float = 0.0
    passed: Timed = field(default_factory=lambda: Timed([], []))
    answered: Timed = field(default_factory=lambda: Timed([], []))
    anchors: int = 0
    in_part: bool = False
    slow: bool = False
    memory: int = 0
    tables: dict[tuple[str, ...], list[Tables]] = field(default_factory=lambda: defaultdict(list))
    questions: int = 0
    tokens: int = 0
    states: int = 0

    def add(self, ran: _Ran, policy: BatchPolicy) -> None:
        """Note what some batches took together."""
        self.passed.seconds.append(ran.passing)
        sizes = [BatchSize.of(questions, policy) for _, questions in ran.asked]
        self.passed.sizes.append(GroupSize(sizes))
        self.answered.seconds.append(ran.answering)
        self.answered.sizes.append(GroupSize([AnswerSize.of(batch.questions) for batch in ran.group]))
        self.tokens += sum(size.tokens for size in sizes)
        for (_, questions), measured in zip(ran.asked, ran.found, strict=True):
            self.tables[tuple(measured.tables["questions"])].append(measured.tables)
            self.questions += len(questions)
            self.states += 0 if measured.states is None else len(measured.states)

    def lengthen(self, timer: Timer, longest: Planned, most: float) -> None:
        """Time as much of a batch as does not take too long, by what shorter parts took: at first of `most` tokens."""
        allowed, rate = max(LONGEST_PART, timer.budget), sum(self.passed.seconds) / self.tokens
        (part,) = _shortened([longest], timer.policy, most)
        self.in_part = len(part.questions) < len(longest.questions)
        while self.in_part:
            (longer,) = _shortened([longest], timer.policy, allowed / rate)
            if len(longer.questions) <= len(part.questions):
                break
            part = longer
            self.add(timer.ran([part]), timer.policy)
            self.anchors += 1
            self.in_part = len(part.questions) < len(longest.questions)
            rate = self.passed.seconds[-1] / part.size.tokens

    def disk(self, units: int, questions: int) -> int:
        """Bytes of so many shards of each table, with the rows of so many questions."""
        stored = [_disk(tables) for tables in self.tables.values()]
        return int(units * stored[0].shards + sum(part.rows for part in stored) / self.questions * questions)


def time_some(timer: Timer, batches: list[Planned], *, in_parts: bool) -> Timings:
    """Time some batches of a pass; `in_parts` where those that take long may be cut."""
    trial = _longest_timed(timer, batches) if in_parts else _Trial()
    found = _timed(timer, batches, trial) if trial.slow is None else _timed_slowly(timer, batches, trial.slow)
    found.loading = trial.starting
    found.memory = _memory()
    release()
    return found


def _timed(timer: Timer, whole: list[Planned], trial: _Trial) -> Timings:
    """Groups of batches in an order in which any beginning stands for all, after one batch of each task and size.

    Parts of batches may not fill a device, so ever longer ones of the largest batch are timed after them.
    """
    clock, longest = timer.clock, max(whole, key=lambda batch: batch.size.tokens)
    batches = _shortened(whole, timer.policy, trial.most)
    ordered = sorted(batches, key=lambda batch: -batch.size.tokens)
    in_a_row = max(1, min(trial.in_a_row, len(ordered) // LEAST_TIMED))
    groups = [ordered[start : start + in_a_row] for start in range(0, len(ordered), in_a_row)]
    places = list(spread([sum(batch.size.tokens for batch in group) for group in groups]))
    largest = {batch.unit.task: batch for batch in reversed(ordered)}
    early = {id(batch): batch for batch in (*largest.values(), *(groups[place][0] for place in places[:LEAST_TIMED]))}
    first = sorted(early.values(), key=lambda batch: -batch.size.tokens)
    starting = sum(timer.ran([batch]).seconds for batch in first)
    found = Timings(first, starting)
    began = clock.now()
    for place in places:
        if len(found.passed.seconds) >= LEAST_TIMED and clock.now() - began > timer.budget:
            break
        found.add(timer.ran(groups[place]), timer.policy)
    if batches != whole:
        found.lengthen(timer, longest, trial.most)
    return found


def _timed_slowly(timer: Timer, whole: list[Planned], shortest: _Ran) -> Timings:
    """The shortest question of the largest batch, then ever more short ones together; the last two timings count.

    A few tokens do not fill a device: two parts of which the second is longer tell what the rest of a batch adds.
    """
    longest = max(whole, key=lambda batch: batch.size.tokens)
    most, kept, ran = len(longest.questions), 1, [shortest]
    while kept < most:
        rate = ran[-1].seconds / sum(batch.size.tokens for batch in ran[-1].group)
        part = _within(longest, timer.policy, LONGEST_TOGETHER / rate)
        if len(part.questions) < MORE_TOGETHER * kept:
            break
        kept, ran = len(part.questions), [*ran, timer.ran([part])]
    found = Timings([], 0.0, in_part=kept < most, slow=True)
    for each in ran[-2:]:
        found.add(each, timer.policy)
    return found


def _within(batch: Planned, policy: BatchPolicy, most: float) -> Planned:
    """As many of the shortest questions of a batch as have no more tokens together, one at least."""
    ordered = _by_length(batch)
    fitting = [n for n in range(1, len(ordered) + 1) if BatchSize.of(ordered[:n], policy).tokens <= most]
    return Planned.of(batch.unit, ordered[: max(fitting, default=1)], policy)


def _by_length(batch: Planned) -> list[Question]:
    return sorted(batch.questions, key=lambda question: question.positions)


def _longest_timed(timer: Timer, batches: list[Planned]) -> _Trial:
    """The tokens of a batch that does not take too long to be timed: the largest one is tried in ever longer parts."""
    longest, allowed = max(batches, key=lambda batch: batch.size.tokens), max(LONGEST_TIMED, timer.budget / 5)
    ordered = _by_length(longest)
    trial = Planned.of(longest.unit, ordered[:1], timer.policy)
    first, again = timer.ran([trial]).seconds, timer.ran([trial])
    took = again.seconds
    starting = max(0.0, first - took)  # kernels are loaded the first time
    if took > LONG_QUESTION:
        return _Trial(trial.size.tokens, starting, 1, again)
    # A few tokens do not fill a device: what they take says little of many, until twice as many take longer.
    before = took
    while len(trial.questions) < len(longest.questions) and (
        2 * took < allowed or (took < GROWING * before and took < 4 * allowed)
    ):
        trial = Planned.of(longest.unit, ordered[: 2 * len(trial.questions)], timer.policy)
        before, took = took, timer.ran([trial]).seconds
    whole = len(trial.questions) == len(longest.questions)
    most = float("inf") if whole else max(1.0, allowed / took) * trial.size.tokens
    return _Trial(most, starting, max(1, min(IN_A_ROW, int(allowed / took))))


def _shortened(batches: list[Planned], policy: BatchPolicy, most: float) -> list[Planned]:
    """The batches; those of more tokens are cut to their first questions."""
    found = []
    for batch in batches:
        kept = batch.questions
        while len(kept) > 1 and BatchSize.of(kept, policy).tokens > most:
            kept = kept[: len(kept) // 2]
        found.append(batch if len(kept) == len(batch.questions) else Planned.of(batch.unit, kept, policy))
    return found


class _Bytes(NamedTuple):
    """Of the shards with some rows: what every shard has, and what the rows add."""

    shards: float
    rows: float


def _disk(measured: Sequence[Tables]) -> _Bytes:
    """As one unit of them all would be stored: what the second half of its rows adds to the first, the others add."""
    constants = {"model": "model", "task": "task", "split": "split", "kind": "solution"}
    shards = rows = 0.0
    for name in measured[0]:
        table = to_arrow(TABLES[name], stacked([tables[name] for tables in measured]), constants)
        half, whole = table.num_rows // 2, len(encode(TABLES[name], table))
        added = (whole - len(encode(TABLES[name], table.slice(0, half)))) / max(1, table.num_rows - half)
        shards, rows = shards + whole - added * table.num_rows, rows + added * table.num_rows
    return _Bytes(shards, rows)


def _memory() -> int:
    """The most that was in use so far: of the GPU, or of this process."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
