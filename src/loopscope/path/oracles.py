"""The best endpoint and the best scale: Eq. (oracle-utilities) and Appendix "Oracle Gains"."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from loopscope.path._arrays import Bools, Floats, finite, partition, plain, quiet, sampled


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
    full = utilities[..., -1]
    halt = np.maximum(utilities[..., 0], full)
    index = utilities.argmax(axis=-1)
    step = utilities.max(axis=-1)
    with quiet():
        advantage = finite("the advantage", step - halt)
        gain_over_full = finite("the gain over the full update", step - full)
    return Oracles(
        plain(halt), plain(step), plain(grid[index]), plain(advantage), plain(gain_over_full), plain(step > halt)
    )
