"""Where sampled gains first turn negative: Appendix A "The Continuous Progress Boundary", "Sampled crossings"."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from loopscope.path._arrays import Bools, Floats, as_numbers, partition, plain, require, same_updates, sampled


@dataclass(frozen=True)
class SampledCrossing:
    """The first grid interval [α₊, α₋) over which the gain goes from nonnegative to negative.

    Continuity puts at least one zero of φ in it. Only for a concave path is that zero known to be the
    progress boundary r₁; a general path may dip below zero unseen between earlier grid points.
    """

    lower: Floats
    """α₊, the grid point before the first observed negative gain; NaN where none was observed."""
    upper: Floats
    """α₋, the grid point of the first observed negative gain; NaN where none was observed."""
    observed: Bools
    """False: no negative gain on the grid, so no error can be assigned to a predicted root."""

    def contains(self, root: ArrayLike) -> Bools:
        """Whether a predicted root hits: α₊ ≤ root < α₋ (Table "Predicting the observed end of progress").

        NaN roots and unobserved crossings never hit.
        """
        roots = as_numbers("root", root)
        same_updates(root=roots.shape, crossing=np.shape(self.lower))
        return plain((self.lower <= roots) & (roots < self.upper))

    def __str__(self) -> str:
        if np.ndim(self.observed):
            return f"{np.count_nonzero(self.observed)} of {np.size(self.observed)} updates have an observed crossing"
        if self.observed:
            return f"the gain turns negative in [{self.lower:g}, {self.upper:g})"
        return "no crossing observed on the grid"


def sampled_crossing(grid: ArrayLike, gains: ArrayLike) -> SampledCrossing:
    """Find the first grid point with φ < 0 and the point before it.

    Args:
        grid: scales 0 = a_0 < ... < a_m = 1.
        gains: φ on the grid, shape (..., m + 1), with φ(0) = 0.

    >>> print(sampled_crossing([0.0, 0.5, 1.0], [0.0, 0.1, -0.2]))
    the gain turns negative in [0.5, 1)
    """
    grid = partition("grid", grid)
    gains = sampled("gains", gains, grid)
    require(gains[..., 0] == 0, "gains at scale 0 are not zero", "subtract the utility of the current state")
    negative = gains < 0
    first = negative.argmax(axis=-1)
    # The gain at scale 0 is zero, so index 0 stands for "nowhere negative" and for nothing else.
    observed = np.asarray(first > 0)
    lower = np.where(observed, grid[first - 1], np.nan)
    upper = np.where(observed, grid[first], np.nan)
    return SampledCrossing(plain(lower), plain(upper), plain(observed))
