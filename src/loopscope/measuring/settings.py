"""What a pass is asked to do: what callers give, checked and turned into plain values before anything is loaded.

One check serves Python, flags, environment and YAML: text is read as on the command line, so that `transitions="1-4"`
means what `--transitions 1-4` does; a caller in Python may also give the numbers themselves. What has two meanings is
refused.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from loopscope.errors import LoopscopeError, choice, index, parse_number, parse_ranges, setting, shown, text, whole
from loopscope.measuring.protocols import DEFAULT, find_protocol
from loopscope.path.grids import GRID_POINTS
from loopscope.store.column_types import Level
from loopscope.tasks.encoding import LoadedTask
from loopscope.tasks.known_tasks import find_benchmark
from loopscope.tasks.lm_eval_requests import is_lm_eval, lm_eval_name
from loopscope.tasks.own_task import Task, is_dataset
from loopscope.tasks.prompting import FEWSHOT_SEED
from loopscope.tasks.selection import LARGEST_ROW, MOST_ROWS, parse_ids

DEEPEST = 10_000
"""The deepest loop that can be asked for."""
MOST_QUESTIONS = 1_000_000_000
"""The largest number of questions that a limit, a unit or a batch can name."""
MOST_CANDIDATES = 100
"""The most of the likeliest tokens that a lens can keep."""
MOST_WORKERS = 10_000
"""The most model replicas that can be asked for."""

Numbers = int | str | Iterable[int]
Limits = int | Mapping[str, int] | None
Ids = tuple[int, ...] | Mapping[str, tuple[int, ...]] | None


def depth_list(name: str, given: Numbers) -> tuple[int, ...]:
    """Depths in increasing order, each once.

    >>> depth_list("depths", "1-4, 8"), depth_list("depths", 4), depth_list("depths", range(3))
    ((1, 2, 3, 4, 8), (4,), (0, 1, 2))
    """
    if isinstance(given, str):
        found = parse_ranges(given, name, largest=DEEPEST, most=DEEPEST + 1) if given else ()
    else:
        found = _numbers(name, given, DEEPEST, DEEPEST + 1)
    return tuple(sorted(set(found)))


def rows(given: Numbers | Mapping[str, Numbers] | None) -> Ids:
    """Source rows, for all tasks or by the name of a task.

    >>> rows("0,5,10-12"), rows(5), rows({"gsm8k": range(2)})
    ((0, 5, 10, 11, 12), (5,), {'gsm8k': (0, 1)})
    """
    if given is None or given == "":
        return None
    if isinstance(given, Mapping):
        return {name: _rows(numbers) for name, numbers in _by_task("ids", given).items()}
    return _rows(given)


def _rows(given: Numbers) -> tuple[int, ...]:
    return parse_ids(given) if isinstance(given, str) else _numbers("ids", given, LARGEST_ROW, MOST_ROWS)


def limits(given: int | str | Mapping[str, int] | None) -> Limits:
    """The most questions, for all tasks or by the name of a task.

    >>> limits("100"), limits("gsm8k=100, piqa=50"), limits(3)
    (100, {'gsm8k': 100, 'piqa': 50}, 3)
    """
    if given is None or given == "":
        return None
    if isinstance(given, str):
        given = _limits_in(given)
    if isinstance(given, Mapping):
        return {name: whole("limit", most, 1, MOST_QUESTIONS) for name, most in _by_task("limit", given).items()}
    return whole("limit", given, 1, MOST_QUESTIONS)


def _limits_in(text: str) -> int | dict[str, int]:
    found: dict[str, int] = {}
    for entry in text.split(","):
        name, equals, number = (word.strip() for word in entry.rpartition("="))
        most = parse_number(number)
        if most is None or bool(name) is not bool(equals):
            raise LoopscopeError(
                f"{setting('limit', text)}: {shown(entry)} is not a number of questions up to {MOST_QUESTIONS:,}:"
                " write 100 or gsm8k=100"
            )
        if name in found:
            raise LoopscopeError(f"{setting('limit', text)} gives two numbers for {name or 'all tasks'}: give one")
        found[name] = most
    if "" in found and len(found) > 1:
        raise LoopscopeError(f"{setting('limit', text)}: give one number for all tasks, or one for each by name")
    return found.get("", found)


def _by_task(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The same under the tasks' own names, of which each stands there once."""
    found: dict[str, Any] = {}
    for task, value in given.items():
        if not isinstance(task, str):
            raise LoopscopeError(f"{setting(name, given)}: {shown(task)} is not the name of a task")
        if canonical(task) in found:
            raise LoopscopeError(f"{setting(name)} names {canonical(task)} twice: name each task once")
        found[canonical(task)] = value
    return found


def canonical(spec: str | Task | LoadedTask) -> str:
    """The name of the task that a specification means, as its records will call it.

    >>> canonical("ARC-Challenge:test"), canonical("mine=data/my.jsonl"), canonical("data/my.jsonl")
    ('arc_challenge', 'mine', 'my')
    """
    if not isinstance(spec, str):
        return spec.name
    if is_lm_eval(spec):
        return lm_eval_name(spec)
    name = spec.partition("=")[0] if "=" in spec else Path(spec.partition(":")[0]).name.partition(".")[0]
    benchmark = find_benchmark(name)
    return name if benchmark is None else benchmark.name


def task_list(given: Any) -> tuple[str | Task, ...]:
    """Tasks: one, several as text with commas, or several as a list; names, files, `Task` objects, data sets.

    >>> task_list("gsm8k:train256, arithmetic"), task_list(["mine=data/a,b.jsonl"])
    (('gsm8k:train256', 'arithmetic'), ('mine=data/a,b.jsonl',))
    """
    if isinstance(given, str):
        return tuple(text("tasks", name.strip()) for name in given.split(",") if name.strip())
    if isinstance(given, os.PathLike):
        return (text("tasks", given),)
    if isinstance(given, Task) or is_dataset(given):
        return (_task(given),)
    if isinstance(given, bytes | Mapping) or not isinstance(given, Iterable):
        raise LoopscopeError(f"{setting('tasks', given)} is not a task: give names or files, e.g. 'arithmetic'")
    return tuple(_task(task) for task in given)


def _task(given: Any) -> str | Task:
    if isinstance(given, Task):
        return given
    if is_dataset(given):
        return Task.from_dataset(given)
    if isinstance(given, Mapping):
        raise LoopscopeError(f"{setting('tasks')} holds {shown(given)}: make a task of rows with Task.from_rows([...])")
    return text("tasks", given)


def _numbers(name: str, given: int | Iterable[int], largest: int, most: int) -> tuple[int, ...]:
    """Whole numbers from 0, at most `most` of them, however many a caller's iterable has."""
    single = index(given)
    listed = [single] if single is not None else given
    if isinstance(listed, bytes | Mapping) or not isinstance(listed, Iterable):
        raise LoopscopeError(f"{setting(name, given)} is not a number or a list of numbers: give e.g. [1, 2]")
    found = tuple(whole(name, number, 0, largest) for number in islice(listed, most + 1))
    if len(found) > most:
        raise LoopscopeError(f"{setting(name)} names more than {most:,} numbers: name fewer, each once")
    return found


@dataclass(frozen=True)
class Prompting:
    """What stands before a question.

    Attributes:
        num_fewshot: examples; None is none, or what a task of lm-evaluation-harness says itself.
        fewshot_split: the split or data file that they come from.
        fewshot_seed: what they are drawn from.
        apply_chat_template: whether the tokenizer's chat template is put around it all.
    """

    num_fewshot: int | None = None
    fewshot_split: str | None = None
    fewshot_seed: int = FEWSHOT_SEED
    apply_chat_template: bool = False

    def __post_init__(self) -> None:
        if self.fewshot_split is not None and not self.num_fewshot:
            raise LoopscopeError(
                f"{setting('fewshot_split', self.fewshot_split)} is where examples come from: say how many with"
                f" {setting('num_fewshot')}"
            )

    def chosen(self) -> dict[str, int | str | bool]:
        """What is not as it is by default, for a manifest: a run from before there was a choice then still replays."""
        plain = Prompting()
        fields = (field.name for field in dataclasses.fields(self))
        return {name: getattr(self, name) for name in fields if getattr(self, name) != getattr(plain, name)}

    @classmethod
    def of_manifest(cls, recorded: Mapping[str, Any]) -> tuple[Prompting, dict[str, Any]]:
        """What `chosen` recorded, and the other settings."""
        own = {field.name for field in dataclasses.fields(cls)}
        rest = {name: value for name, value in recorded.items() if name not in own}
        return cls(**{name: value for name, value in recorded.items() if name in own}), rest


LongPolicy = Literal["error", "skip", "truncate-left"]
REFERENCES = ("given", "own")
LONGEST_STEP = 4.0
"""The largest multiple of a proposed step that is measured."""


def scales_end(given: float | None) -> float | None:
    """Where scales end that go beyond 1: a multiple of the grid's spacing, or nothing.

    >>> scales_end(2), scales_end(1.5), scales_end(None)
    (2.0, 1.5, None)
    """
    if given is None:
        return None
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    steps = float(given) * (GRID_POINTS - 1) if is_number else 0.0
    if not 1.0 < steps / (GRID_POINTS - 1) <= LONGEST_STEP or abs(steps - round(steps)) > 1e-9:
        raise LoopscopeError(
            f"{setting('scales_to', given)}: give a multiple of {1 / (GRID_POINTS - 1):g} above 1 and up to"
            f" {LONGEST_STEP:g}, such as 2"
        )
    return round(steps) / (GRID_POINTS - 1)


READOUT_DTYPES = ("float32", "float64")
_BUDGETS = {"cuda": 65536}
_CPU_BUDGET = 4096


MOST_SCALES, LARGEST_SCALE = 16, 4.0
"""Of `trajectories`: every scale is a trip of its own for each update."""


def scale_list(name: str, given: Sequence[float] | float | str | None) -> tuple[float, ...]:
    """Scales in rising order, each once: numbers, or text such as "0.25,0.5".

    >>> scale_list("trajectories", "0.5, 0.25"), scale_list("trajectories", None)
    ((0.25, 0.5), ())
    """
    if given is None:
        return ()
    listed = given.split(",") if isinstance(given, str) else given if isinstance(given, Sequence) else [given]
    try:
        scales = sorted({float(scale) for scale in listed})
    except (TypeError, ValueError):
        scales = []
    if not 0 < len(scales) <= MOST_SCALES or not all(0 <= scale <= LARGEST_SCALE for scale in scales):
        raise LoopscopeError(
            f"{setting(name, given)} is no list of scales: give up to {MOST_SCALES} from 0 to {LARGEST_SCALE:g},"
            " such as 0.25,0.5"
        )
    return tuple(scales)


@dataclass(frozen=True)
class BatchPolicy:
    """How the questions of a work unit are put into batches.

    Attributes:
        name: "tokens" (by length, up to a budget of padded tokens), "questions" (source order, a fixed number),
            or "paper" (source order, two questions, natural padding).
        size: questions in a batch; None for "tokens".
        budget: padded tokens in a batch; None unless "tokens".
    """

    name: Literal["tokens", "questions", "paper"]
    size: int | None = None
    budget: int | None = None

    @classmethod
    def parse(cls, given: str | int) -> BatchPolicy:
        """`auto`, `paper` or a number of questions.

        >>> BatchPolicy.parse("8")
        BatchPolicy(name='questions', size=8, budget=None)
        """
        if given == "auto":
            return cls("tokens", budget=_CPU_BUDGET)
        if given == "paper":
            return cls("paper", size=2)
        size = parse_number(given) if isinstance(given, str) else given
        if size is None:
            raise LoopscopeError(
                f"{setting('batch_size', given)} is not a number of questions: give one up to {MOST_QUESTIONS:,},"
                " `auto` or `paper`"
            )
        return cls("questions", size=whole("batch_size", size, 1, MOST_QUESTIONS))

    def on(self, device_type: str) -> BatchPolicy:
        """The same policy with the token budget that suits a kind of device."""
        if self.budget is None:
            return self
        return dataclasses.replace(self, budget=_BUDGETS.get(device_type, _CPU_BUDGET))


@dataclass(frozen=True)
class Settings:
    """The numbers of a run depend on this, the model and the data, and on nothing else.

    Attributes:
        transitions: each t of an update t → t+1 that is analysed.
        depths: where the utility is stored; both ends of every transition are among them.
        level: how much is computed for every update.
        tokens: whether every reference token gets a row of its own.
        paths: whether the 257 nodes of the FP64 analysis are stored.
        batch: how questions are put into batches.
        unit_size: questions in a work unit.
        readout_dtype: arithmetic of the readout, the paper's FP32 by default.
        scalar_checks: questions of each task on which Q is computed a second way.
        exit_threshold: threshold of the exit gate; None takes the checkpoint's own.
        long: what happens to sequences longer than the model allows.
        share_context: whether what the options of a question have in common runs once.
        certify: whether every update gets enclosures and verdicts that no rounding can overturn.
        trace: whether every reference position gets a row after every loop.
        lens: how many of the likeliest tokens those rows hold; it needs `trace`.
        scales_to: where the scales end at which steps longer than the proposed one are measured; None measures none.
        renormalise: whether every update is measured along the renormalised path, too.
        reference: "given", the task's own, or "own", the model's own answer at its trained depth.
        trajectories: scales at which updates are changed, to see what the later loops make of it.
        protocol: whose protocol the caller chose; what it sets stands in the settings themselves.
        keep_states: the depth whose recurrent states are stored; None stores none.
        continue_from: which run's stored states the pass goes on from, and their `depth`; None walks the whole way.
        training_step: at which step of its training the model was saved; None where that is not known.
        short_steps: whether level quick has the gains of a quarter step and of the quadratic step, too; a run's tables
            have no columns for them, what watches a training has.
    """

    transitions: tuple[int, ...]
    depths: tuple[int, ...]
    level: Level = Level.GRID
    tokens: bool = False
    paths: bool = False
    batch: BatchPolicy = BatchPolicy("tokens", budget=_CPU_BUDGET)
    unit_size: int = 64
    readout_dtype: str = "float32"
    scalar_checks: int = 16
    exit_threshold: float | None = None
    long: LongPolicy = "error"
    share_context: bool = False
    certify: bool = False
    trace: bool = False
    lens: int = 0
    scales_to: float | None = None
    renormalise: bool = False
    reference: str = "given"
    trajectories: tuple[float, ...] = ()
    protocol: str = DEFAULT
    keep_states: int | None = None
    continue_from: Mapping[str, Any] | None = None
    training_step: int | None = None
    short_steps: bool = False

    def __post_init__(self) -> None:
        if not self.depths:
            raise LoopscopeError(f"nothing to measure: give {setting('transitions')}, {setting('depths')} or both")
        if self.tokens and not self.transitions:
            raise LoopscopeError(
                f"{setting('tokens', True)} stores updates token by token: name some with {setting('transitions')}"
            )
        if self.paths and self.level is not Level.FULL:
            raise LoopscopeError(f"{setting('paths', True)} stores the FP64 analysis: add {setting('level', 'full')}")
        if self.certify and not self.transitions:
            raise LoopscopeError(
                f"{setting('certify', True)} certifies updates: name some with {setting('transitions')}"
            )
        if self.trace and not self.deepest:
            raise LoopscopeError(
                f"{setting('trace', True)} follows the loops: name a depth from 1 on with {setting('depths')}"
            )
        for name in ("scales_to", "renormalise"):
            if getattr(self, name) and not self.transitions:
                raise LoopscopeError(
                    f"{setting(name, getattr(self, name))} is about updates: name some with {setting('transitions')}"
                )
        if self.trajectories and not self.deepest:
            raise LoopscopeError(
                f"{setting('trajectories')} changes updates: name some with {setting('transitions')},"
                f" and where to follow them to with {setting('depths')}"
            )
        if self.depths[0] < self.start:
            raise LoopscopeError(
                f"{setting('continue_from')} goes on from depth {self.start}, and depth {self.depths[0]} lies before"
                f" it: ask {setting('transitions')} and {setting('depths')} from {self.start} on"
            )
        for name in ("trace", "trajectories"):
            if self.start and getattr(self, name):
                raise LoopscopeError(f"{setting(name)} begins at the first loop: leave out {setting('continue_from')}")
        if self.batch.name == "paper" and self.unit_size % 2:
            raise LoopscopeError(
                f"{setting('batch_size', 'paper')} pairs questions in source order:"
                f" {setting('unit_size', self.unit_size)} must be even"
            )
        if self.batch.name == "paper" and self.share_context:
            raise LoopscopeError(
                f"{setting('batch_size', 'paper')} runs every option with its whole context, as the paper does:"
                f" leave out {setting('share_context', True)}, or choose another {setting('batch_size')}"
            )

    @classmethod
    def of(cls, transitions: Numbers, depths: Numbers, level: Level | str, **rest: Any) -> Settings:
        """Settings with the ends of every transition, and where states are kept, added to the depths."""
        updates = depth_list("transitions", transitions)
        kept = () if rest.get("keep_states") is None else (rest["keep_states"],)
        stored = {*depth_list("depths", depths), *updates, *(t + 1 for t in updates), *kept}
        chosen = Level(choice("level", level, list(Level)))
        return cls(updates, tuple(sorted(stored)), chosen, **rest)

    def on(self, device_type: str) -> Settings:
        """The same settings with batches that suit a kind of device."""
        return dataclasses.replace(self, batch=self.batch.on(device_type))

    def chosen(self) -> dict[str, Any]:
        """What is not as it is by default, for a manifest: a run from before there was a choice then still replays."""
        plain = Settings(self.transitions, self.depths)
        names = ["share_context", "certify", "trace", "lens", "scales_to", "renormalise", "reference", "trajectories"]
        names += ["protocol", "keep_states", "continue_from", "training_step"]
        found = {name: getattr(self, name) for name in names if getattr(self, name) != getattr(plain, name)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}

    @property
    def paper_bracket(self) -> float | None:
        """The widest bracket of the table `as_in_paper`; None where there is no such table."""
        return None if self.level is Level.QUICK else find_protocol(self.protocol).paper_bracket

    @property
    def spans(self) -> bool:
        """Whether rows say where their token stands in the text."""
        return self.tokens or self.trace

    @property
    def start(self) -> int:
        """The depth that one trip begins at."""
        return 0 if self.continue_from is None else int(self.continue_from["depth"])

    @property
    def deepest(self) -> int:
        """How many loops one trip takes."""
        return self.depths[-1]
