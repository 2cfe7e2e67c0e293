"""Problem number i of a split: addressable, so that no file of problems is ever needed.

Row i tries stories from its own stream until the wording of one belongs to the split; how many operations
it has follows from i, so that any first rows hold every difficulty alike.
"""

from __future__ import annotations

from loopscope.tasks.arithmetic.problem import Problem
from loopscope.tasks.arithmetic.rng import Chooser, key
from loopscope.tasks.arithmetic.story import FEWEST, MOST, tell
from loopscope.tasks.arithmetic.wording import split_of

SEED = 20260904
"""The seed of the published rows."""


def problem(split: str, index: int, *, seed: int = SEED, operations: int | None = None) -> Problem:
    """Row `index` of a split, with 2 + index mod 5 operations unless told otherwise.

    >>> first = problem("test", 0)
    >>> first.operations, first == problem("test", 0)
    (2, True)
    """
    count = FEWEST + index % (MOST - FEWEST + 1) if operations is None else operations
    choose = Chooser(key("arithmetic", seed, split, index))
    while True:
        candidate = tell(choose, count)
        if split_of(candidate.story) == split:
            return candidate
