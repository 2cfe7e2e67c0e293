"""The wording of a problem, and the split that follows from it.

The wording is the story with every number, name and pronoun for a name taken out. Its keyed hash decides whether the
problem belongs to train, validation or test. Two problems with the same wording are always on the same
side, so the splits share no problem and not even a wording.
"""

from __future__ import annotations

import hashlib
import re

from loopscope.tasks.arithmetic.words import NAMES

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
