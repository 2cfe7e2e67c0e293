"""Random choices that come out the same on every platform and Python version.

Only `random.Random(int).random()` is used, whose sequence Python promises to keep; the convenience methods
built on it may change and are not.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

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
