"""What a pass is asked to do, checked before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from loopscope._errors import LoopscopeError
from loopscope.store.levels import Level

Engine = Literal["local", "ray"]
LongPolicy = Literal["error", "skip", "truncate-left"]

DTYPES = ("bfloat16", "float16", "float32", "float64")


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
    def parse(cls, text: str, budget: int) -> BatchPolicy:
        """`auto`, `paper` or a number of questions.

        >>> BatchPolicy.parse("8", 4096)
        BatchPolicy(name='questions', size=8, budget=None)
        """
        if text == "auto":
            return cls("tokens", budget=budget)
        if text == "paper":
            return cls("paper", size=2)
        if text.isdecimal() and int(text) > 0:
            return cls("questions", size=int(text))
        raise LoopscopeError(f"--batch-size {text!r} is not a number of questions; write a number, `auto` or `paper`")


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
    """

    transitions: tuple[int, ...]
    depths: tuple[int, ...]
    level: Level = Level.GRID
    tokens: bool = False
    paths: bool = False
    batch: BatchPolicy = BatchPolicy("tokens", budget=4096)
    unit_size: int = 64
    readout_dtype: str = "float32"
    scalar_checks: int = 16
    exit_threshold: float | None = None

    def __post_init__(self) -> None:
        if not self.depths:
            raise LoopscopeError("nothing to measure: give --transitions, --depths or both")
        if self.paths and self.level is not Level.FULL:
            raise LoopscopeError("--paths stores the FP64 analysis; add --level full")

    @classmethod
    def of(cls, transitions: tuple[int, ...], depths: tuple[int, ...], **rest: object) -> Settings:
        """Settings with the ends of every transition added to the depths."""
        ends = {end for t in transitions for end in (t, t + 1)}
        return cls(tuple(sorted(set(transitions))), tuple(sorted(set(depths) | ends)), **rest)  # type: ignore[arg-type]

    @property
    def deepest(self) -> int:
        """How many loops one trip takes."""
        return self.depths[-1]
