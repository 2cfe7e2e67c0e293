"""Outcome classes of an update: Definition (Finite-Step Failure), and its margin variant."""

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from loopscope._errors import LoopscopeError
from loopscope.path._arrays import Bools, per_update, plain

EFFECT_MARGIN = 1e-4


class Outcome(IntEnum):
    """What a full update did to the reference utility, as a small integer that arrays can hold."""

    PROGRESSING = 0
    NEUTRAL = 1
    DIRECTIONAL_FAILURE = 2
    FINITE_STEP_FAILURE = 3

    @property
    def label(self) -> str:
        """The paper's words for the class, such as "finite-step failure"."""
        words = self.name.lower().replace("_", " ")
        return words.replace("finite step", "finite-step")

    @property
    def harmful(self) -> bool:
        """Whether the full update lowers the utility."""
        return self >= Outcome.DIRECTIONAL_FAILURE

    def __str__(self) -> str:
        return self.label


def classify(slope: ArrayLike, gain: ArrayLike) -> Any:
    """Sort updates by the signs of their slope A = φ'(0) and gain ΔU = φ(1).

    Definition (Finite-Step Failure): progressing if ΔU > 0, neutral if ΔU = 0; a harmful update (ΔU < 0) is
    a directional failure if A ≤ 0 and a finite-step failure if A > 0.

    Args:
        slope: A, one entry per update.
        gain: ΔU, one entry per update.

    Returns:
        An `Outcome` for one update; an int8 array of outcome codes for many.

    >>> classify(0.2, -0.1)
    <Outcome.FINITE_STEP_FAILURE: 3>
    >>> print(classify(-0.2, -0.1))
    directional failure
    >>> classify([0.2, 0.0, 0.3], [-0.1, -0.1, 0.0])
    array([3, 2, 1], dtype=int8)
    """
    slope, gain = per_update(slope=slope, gain=gain)
    harmful = gain < 0
    codes = (gain <= 0).astype(np.int8) + harmful + (harmful & (slope > 0))
    return codes if codes.ndim else Outcome(int(codes))


def exceeds_margin(slope: ArrayLike, gain: ArrayLike, margin: float = EFFECT_MARGIN) -> Bools:
    """Whether an update is a finite-step failure beyond an effect margin.

    Requires both A > margin and -ΔU > margin (Table "Finite-step failure shares and margin counts", margin
    1e-4). With margin 0 this is the finite-step failure itself.

    >>> exceeds_margin(0.2, -0.1)
    True
    >>> exceeds_margin(0.2, -1e-5)
    False
    """
    if not 0 <= margin < np.inf:
        raise LoopscopeError(f"margin is {margin}: give zero or a positive number")
    slope, gain = per_update(slope=slope, gain=gain)
    return plain((slope > margin) & (-gain > margin))
