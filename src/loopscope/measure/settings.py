"""What a pass is asked to do, checked before anything is loaded."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from loopscope._errors import LoopscopeError
from loopscope.store.levels import Level

LongPolicy = Literal["error", "skip", "truncate-left"]
Limits = int | Mapping[str, int] | None

READOUT_DTYPES = ("float32", "float64")
_BUDGETS = {"cuda": 65536}
_CPU_BUDGET = 4096


def parse_depths(text: str, flag: str = "--depths") -> tuple[int, ...]:
    """Depths and ranges of depths, both ends included, in increasing order.

    >>> parse_depths("1-4,8,12")
    (1, 2, 3, 4, 8, 12)
    """
    found: set[int] = set()
    for part in text.replace(" ", "").split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise LoopscopeError(f"{flag} {text!r}: {part!r} is not a depth or a range; write e.g. 1-8,12")
        start, stop = int(first), int(last) if dash else int(first)
        if stop < start:
            raise LoopscopeError(f"{flag} {text!r}: {part!r} runs backwards; write {last}-{first}")
        found.update(range(start, stop + 1))
    return tuple(sorted(found))


def parse_limits(text: str) -> Limits:
    """`100` for every task, or a number for some of them by name.

    >>> parse_limits("100"), parse_limits("gsm8k=100,piqa=50")
    (100, {'gsm8k': 100, 'piqa': 50})
    """
    limits: dict[str, int] = {}
    for part in text.replace(" ", "").split(","):
        name, equals, number = part.rpartition("=")
        if not number.isdecimal() or int(number) < 1 or bool(name) is not bool(equals) or "" in limits:
            raise LoopscopeError(f"--limit {text!r}: {part!r} is not a number of questions; write 100 or gsm8k=100")
        limits[name] = int(number)
    if "" in limits and len(limits) > 1:
        raise LoopscopeError(f"--limit {text!r}: give one number for all tasks, or one for each by name")
    return limits.get("", limits)


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
    def parse(cls, text: str) -> BatchPolicy:
        """`auto`, `paper` or a number of questions.

        >>> BatchPolicy.parse("8")
        BatchPolicy(name='questions', size=8, budget=None)
        """
        if text == "auto":
            return cls("tokens", budget=_CPU_BUDGET)
        if text == "paper":
            return cls("paper", size=2)
        if text.isdecimal() and int(text) > 0:
            return cls("questions", size=int(text))
        raise LoopscopeError(f"--batch-size {text!r} is not a number of questions; write a number, `auto` or `paper`")

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
        exit_threshold: CDF threshold of the exit gate; None takes the checkpoint's own.
        long: what happens to sequences longer than the model allows.
        share_context: whether what the options of a question have in common runs once.
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

    def __post_init__(self) -> None:
        if not self.depths:
            raise LoopscopeError("nothing to measure: give --transitions, --depths or both")
        if self.depths[0] < 0:
            raise LoopscopeError(f"depth {self.depths[0]} is before the first loop: depths and transitions begin at 0")
        if self.tokens and not self.transitions:
            raise LoopscopeError("--tokens stores updates token by token: name some with --transitions")
        if self.paths and self.level is not Level.FULL:
            raise LoopscopeError("--paths stores the FP64 analysis: add --level full")
        if self.unit_size < 1:
            raise LoopscopeError(f"--unit-size {self.unit_size} is too small: store at least 1 question at a time")
        if self.batch.name == "paper" and self.unit_size % 2:
            raise LoopscopeError(
                f"--batch-size paper pairs questions in source order: --unit-size {self.unit_size} must be even"
            )
        if self.batch.name == "paper" and self.share_context:
            raise LoopscopeError(
                "--batch-size paper runs every option with its whole context, as the paper does:"
                " leave out --share-context, or choose another --batch-size"
            )
        if self.readout_dtype not in READOUT_DTYPES:
            raise LoopscopeError(f"--readout-dtype {self.readout_dtype!r} is not known: choose float32 or float64")
        if self.scalar_checks < 0:
            raise LoopscopeError(f"{self.scalar_checks} scalar checks cannot be made: give 0 or more")
        if self.exit_threshold is not None and not 0.0 < self.exit_threshold <= 1.0:
            raise LoopscopeError(f"--exit-threshold {self.exit_threshold} is no probability: give one in (0, 1]")
        if self.long not in get_args(LongPolicy):
            raise LoopscopeError(f"--long {self.long!r} is not known: choose {', '.join(get_args(LongPolicy))}")

    @classmethod
    def of(cls, transitions: Iterable[int], depths: Iterable[int], level: Level | str, **rest: object) -> Settings:
        """Settings with the ends of every transition added to the depths."""
        updates = tuple(sorted(set(transitions)))
        ends = {end for t in updates for end in (t, t + 1)}
        return cls(updates, tuple(sorted(set(depths) | ends)), _level(level), **rest)  # type: ignore[arg-type]

    def on(self, device_type: str) -> Settings:
        """The same settings with batches that suit a kind of device."""
        return dataclasses.replace(self, batch=self.batch.on(device_type))

    @property
    def deepest(self) -> int:
        """How many loops one trip takes."""
        return self.depths[-1]


def _level(text: Level | str) -> Level:
    try:
        return Level(text)
    except ValueError:
        names = [level.value for level in Level]
        near = difflib.get_close_matches(str(text), names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"choose {', '.join(names)}"
        raise LoopscopeError(f"--level {text!r} is not known: {hint}") from None
