"""A generated problem: its text, its computation as a small graph of steps, its answer, and the split it belongs to.

Random choices come out the same on every platform and Python version: only `random.Random(int).random()` is used, whose
sequence Python promises to keep; the convenience methods built on it may change.

The wording of a problem is the story with every number, name and pronoun for a name taken out. Its keyed hash decides
whether the problem belongs to train, validation or test. Two problems with the same wording are always on the same
side, so the splits share no problem and not even a wording.

The worked solution: one short line per operation, then the answer line, in one of five styles.

The question asks for the style (`REQUESTS`; none for the plain style with units), so that a reader of the
question knows how the solution will look; within a style the words of a line still vary.

Wrong answers that a hurried person gives: the options of `arithmetic-mc`.

Each slip changes the computation in one place and carries the change through to the end:
a wrong operation, a step left out, operands swapped, a carry forgotten, off by one, or stopping early.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

LANGUAGE: dict[str, Any] = json.loads((Path(__file__).parent / "language.json").read_text(encoding="utf-8"))
"""Words and sentence frames.

Slots: {A} the person whose amount is followed, {S}/{s} the same by name or pronoun, {B} somebody else, {x}/{x1} things,
{c}/{c1} containers, {n} {a} {b} {k} numbers. A frame's key says what it does to the amount v: add v + n, mul vk,
div v/k, …; keys that begin with `to_` go on with {B}. Endings ask for v, or for one operation more: need n − v,
together v + n, gap v − n, per v/k, cost vk. In stories, gaps in angle brackets are drawn anew each time.
"""
WORDS = LANGUAGE["words"]
NAMES: list[str] = WORDS["she"] + WORDS["he"]


def key(*parts: int | str) -> int:
    """A 64-bit number from the parts, by BLAKE2b: the same everywhere, unlike `hash`.

    >>> key("test", 1) == key("test", 1), key("test", 1) == key("test", 11)
    (True, False)
    """
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


class Chooser:
    """A stream of choices from a seed."""

    __slots__ = ("uniform",)

    def __init__(self, seed: int) -> None:
        self.uniform = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.uniform() < probability

    def below(self, count: int) -> int:
        """A whole number from 0 to count − 1."""
        return int(self.uniform() * count)

    def between(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""
        return low + int(self.uniform() * (high - low + 1))

    def of(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[int(self.uniform() * len(options))]

    def order(self, count: int) -> list[int]:
        """A permutation of 0 … count − 1 (Fisher-Yates)."""
        result = list(range(count))
        for last in range(count - 1, 0, -1):
            other = int(self.uniform() * (last + 1))
            result[last], result[other] = result[other], result[last]
        return result


LITERAL = -1
"""In place of a step's index: the operand is a number of the text."""


class Step(NamedTuple):
    """One operation `left op right = result`; operands are numbers of the text or results of earlier steps."""

    left: int
    op: str
    right: int
    result: int
    left_from: int
    right_from: int
    kind: str
    owner: str
    unit: str

    @property
    def equation(self) -> str:
        """The computation as it stands in a worked solution.

        >>> Step(14, "+", 9, 23, LITERAL, LITERAL, "add", "Mia", "shells").equation
        '14 + 9 = 23'
        """
        return f"{self.left} {self.op} {self.right} = {self.result}"


@dataclass(frozen=True, slots=True)
class Problem:
    """A word problem with its worked solution; `story` is all of it but the request for a style."""

    story: str
    request: str
    solution: str
    steps: tuple[Step, ...]
    family: str
    remark: bool

    @property
    def answer(self) -> int:
        """The result of the last step."""
        return self.steps[-1].result

    @property
    def operations(self) -> int:
        """The difficulty: how many operations lead to the answer."""
        return len(self.steps)

    @property
    def question(self) -> str:
        """The story and, where there is one, the request for a style of solution."""
        return f"{self.story} {self.request}" if self.request else self.story


def apply(op: str, left: int, right: int) -> int | None:
    """The result of one operation, or None where it is no whole number.

    >>> apply("*", 6, 7), apply("/", 7, 2)
    (42, None)
    """
    if op == "+":
        return left + right
    if op == "-":
        return left - right
    if op == "*":
        return left * right
    return left // right if right != 0 and left % right == 0 else None


_NUMBER = re.compile(r"\d+")
_NAME = re.compile(r"\b(?:" + "|".join(("She", "she", "He", "he", *NAMES)) + r")\b")
_KEY = b"loopscope arithmetic split 1"

SPLITS = ("train", "validation", "test")
_SHARES = ("test",) * 3 + ("validation",) + ("train",) * 12


def wording(story: str) -> str:
    """The story without its numbers and names.

    >>> wording("Mia has 14 shells. Tom gives Mia 9 more shells. How many shells does Mia have now?")
    '@ has # shells. @ gives @ # more shells. How many shells does @ have now?'
    """
    return _NAME.sub("@", _NUMBER.sub("#", story))


def split_of(story: str) -> str:
    """The split that the story's wording belongs to: 12 of 16 train, 1 validation, 3 test."""
    digest = hashlib.blake2b(wording(story).encode(), digest_size=1, key=_KEY).digest()
    return _SHARES[digest[0] & 15]


REQUESTS, LABELS, SENTENCES = (LANGUAGE["solutions"][name] for name in ("requests", "labels", "sentences"))
STYLES = tuple(REQUESTS)

ANSWER = "Answer:"
_ANSWER = re.compile(r"Answer:[ \t]*(-?\d+)")


def render(steps: list[Step], style: str, choose: Chooser) -> str:
    """The solution's text: a line for each step, then `Answer: n`; no newline at the end."""
    lines = []
    for number, step in enumerate(steps, 1):
        equation = step.equation
        if style == "bare":
            lines.append(equation)
        elif style == "unit":
            lines.append(f"{equation} {step.unit}")
        elif style == "numbered":
            lines.append(f"{number}. {equation}")
        elif style == "labelled":
            label = choose.of(LABELS[step.kind])
            lines.append(f"{label.replace('{B}', step.owner)}: {equation}")
        else:
            sentence = choose.of(SENTENCES[step.kind])
            lines.append(sentence.replace("{B}", step.owner).replace("{e}", equation).replace("{u}", step.unit))
    lines.append(f"{ANSWER} {steps[-1].result}")
    return "\n".join(lines)


def answer_of(text: str) -> int | None:
    r"""The final answer in a solution or a generation, or None where there is none.

    The last `Answer: n` counts; a number that a generation only passes on its way does not.

    >>> answer_of("14 + 9 = 23 shells\nAnswer: 23")
    23
    >>> answer_of("14 + 9 = 23") is None
    True
    """
    found = _ANSWER.findall(text)
    return int(found[-1]) if found else None


_SWAPS = {"+": "-*", "-": "+", "*": "+", "/": "*-"}


def replay(steps: tuple[Step, ...], changed: int, result: int) -> int | None:
    """The final result when step `changed` comes out as `result`; None where a later division leaves a rest."""
    results: list[int] = []
    for index, step in enumerate(steps):
        if index == changed:
            results.append(result)
            continue
        left = step.left if step.left_from == LITERAL else results[step.left_from]
        right = step.right if step.right_from == LITERAL else results[step.right_from]
        value = apply(step.op, left, right)
        if value is None:
            return None
        results.append(value)
    return results[-1]


def slips(steps: tuple[Step, ...]) -> list[list[int]]:
    """Wrong final answers by kind of slip (kinds may be empty): whole, positive, below 10000, never the answer."""
    answer = steps[-1].result
    kinds: list[list[int | None]] = [[], [], [], [], []]
    for index, step in enumerate(steps):
        for op in _SWAPS[step.op]:
            wrong = apply(op, step.left, step.right)
            if wrong is not None:
                kinds[0].append(replay(steps, index, wrong))
        kinds[1].append(replay(steps, index, step.left))
        if step.right_from != LITERAL:
            kinds[1].append(replay(steps, index, step.right))
        if step.op == "-":
            kinds[2].append(replay(steps, index, _digits_swapped(step.left, step.right)))
        if step.op in "+-*":
            kinds[3] += [replay(steps, index, step.result - 10), replay(steps, index, step.result + 10)]
        kinds[3] += [replay(steps, index, step.result - 1), replay(steps, index, step.result + 1)]
        kinds[4].append(step.result)
    return [[wrong for wrong in kind if wrong is not None and 0 < wrong < 10000 and wrong != answer] for kind in kinds]


def _digits_swapped(left: int, right: int) -> int:
    """Column-wise subtraction that always takes the smaller digit from the larger.

    >>> _digits_swapped(52, 37)
    25
    """
    return int(
        "".join(str(abs(int(a) - int(b))) for a, b in zip(str(left), str(right).zfill(len(str(left))), strict=True))
    )


def wrong_answers(steps: tuple[Step, ...], choose: Chooser, count: int = 3) -> list[int]:
    """`count` different wrong answers, from different kinds of slip as far as there are any."""
    kinds = slips(steps)
    chosen: list[int] = []
    while len(chosen) < count:
        open_kinds = [index for index in choose.order(len(kinds)) if set(kinds[index]) - set(chosen)]
        if not open_kinds:
            break
        for index in open_kinds[: count - len(chosen)]:
            left = [wrong for wrong in kinds[index] if wrong not in chosen]
            if left:
                chosen.append(choose.of(left))
    answer, distance = steps[-1].result, 2
    while len(chosen) < count:
        if answer + distance not in chosen:
            chosen.append(answer + distance)
        distance += 1
    return chosen
