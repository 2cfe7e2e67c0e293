"""What a pass is asked to do, checked before anything is loaded."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from loopscope._errors import LoopscopeError, setting
from loopscope._ranges import parse_number
from loopscope.measure.arguments import MOST_QUESTIONS, Numbers, choice, whole
from loopscope.measure.arguments import depths as given_depths
from loopscope.store.levels import Level

LongPolicy = Literal["error", "skip", "truncate-left"]

READOUT_DTYPES = ("float32", "float64")
_BUDGETS = {"cuda": 65536}
_CPU_BUDGET = 4096


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
            raise LoopscopeError(f"nothing to measure: give {setting('transitions')}, {setting('depths')} or both")
        if self.tokens and not self.transitions:
            raise LoopscopeError(
                f"{setting('tokens', True)} stores updates token by token: name some with {setting('transitions')}"
            )
        if self.paths and self.level is not Level.FULL:
            raise LoopscopeError(f"{setting('paths', True)} stores the FP64 analysis: add {setting('level', 'full')}")
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
    def of(cls, transitions: Numbers, depths: Numbers, level: Level | str, **rest: object) -> Settings:
        """Settings with the ends of every transition added to the depths."""
        updates = given_depths("transitions", transitions)
        stored = {*given_depths("depths", depths), *updates, *(t + 1 for t in updates)}
        chosen = Level(choice("level", level, list(Level)))
        return cls(updates, tuple(sorted(stored)), chosen, **rest)  # type: ignore[arg-type]

    def on(self, device_type: str) -> Settings:
        """The same settings with batches that suit a kind of device."""
        return dataclasses.replace(self, batch=self.batch.on(device_type))

    @property
    def deepest(self) -> int:
        """How many loops one trip takes."""
        return self.depths[-1]
