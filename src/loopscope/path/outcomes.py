"""What an update did, and what a shorter step would have done: outcome classes and oracles.

Definition (Finite-Step Failure) and its margin variant; step contraction of Section "Prediction and Fixed-Direction
Intervention"; Eq. (oracle-utilities) and Appendix "Oracle Gains".
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from loopscope.errors import LoopscopeError
from loopscope.path.arrays import Bools, Floats, finite, partition, per_update, plain, quiet, sampled

EFFECT_MARGIN = 1e-4

CONTRACTION = 0.25
"""The shorter step of the paper's step contraction."""


class Outcome(IntEnum):
    """What a full update did to the reference utility, as a small integer that arrays can hold."""

    PROGRESSING = 0
    NEUTRAL = 1
    DIRECTIONAL_FAILURE = 2
    FINITE_STEP_FAILURE = 3

    @property
    def label(self) -> str:
        """The paper's words for the class, such as "finite-step failure"."""
        return self.name.lower().replace("_", " ").replace("finite step", "finite-step")

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


class Oracles(NamedTuple):
    """Utilities chosen with the reference at hand, in the same units as the samples."""

    halt: Floats
    """U_halt = max{U(H), U(H⁺)}."""
    step: Floats
    """U_step = max over the action set of U(H + αD)."""
    action: Floats
    """The smallest scale that attains U_step."""
    advantage: Floats
    """U_step - U_halt ≥ 0, what intermediate scales add to choosing an endpoint."""
    gain_over_full: Floats
    """U_step - U(H⁺) ≥ 0."""
    interior: Bools
    """Strict interior advantage: some interior scale exceeds both endpoint utilities."""


def oracles(grid: ArrayLike, utilities: ArrayLike) -> Oracles:
    """Endpoint and step oracles over a finite action set that contains 0 and 1.

    Args:
        grid: 0 = b_0 < ... < b_m = 1.
        utilities: U(H + αD) or φ on the grid, shape (..., m + 1). A constant added to an update moves `halt`
            and `step` and leaves the rest unchanged.

    >>> oracles([0.0, 0.5, 1.0], [0.0, 0.25, -0.5])
    Oracles(halt=0.0, step=0.25, action=0.5, advantage=0.25, gain_over_full=0.75, interior=True)
    """
    grid = partition("grid", grid)
    utilities = sampled("utilities", utilities, grid)
    full, step = utilities[..., -1], utilities.max(axis=-1)
    halt = np.maximum(utilities[..., 0], full)
    action = grid[utilities.argmax(axis=-1)]
    with quiet():
        advantage = finite("the advantage", step - halt)
        gain_over_full = finite("the gain over the full update", step - full)
    return Oracles(*map(plain, (halt, step, action, advantage, gain_over_full, step > halt)))
