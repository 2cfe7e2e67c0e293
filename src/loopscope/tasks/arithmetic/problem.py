"""A generated problem: its text, its computation as a small graph of steps, its answer, and the split it belongs to.

Random choices come out the same on every platform and Python version: only `random.Random(int).random()` is used, whose
sequence Python promises to keep; the convenience methods built on it may change.

The wording of a problem is the story with every number, name and pronoun for a name taken out. Its keyed hash decides
whether the problem belongs to train, validation or test. Two problems with the same wording are always on the same
side, so the splits share no problem and not even a wording.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from loopscope.tasks.arithmetic.words import NAMES

T = TypeVar("T")


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
