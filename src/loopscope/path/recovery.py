"""Step contraction of finite-step failures: Section "Prediction and Fixed-Direction Intervention"."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from loopscope.path._arrays import per_update, require
from loopscope.path.outcomes import Outcome, classify

CONTRACTION = 0.25


class Recovery(NamedTuple):
    """How finite-step failures fare at a shorter step."""

    failures: int
    """Finite-step failures of the full updates."""
    recovered: int
    """Those with positive gain at the shorter step."""
    fraction: float
    """recovered / failures; NaN without a failure."""
    mean_gain: float
    """Mean gain at the shorter step over all failures, recovered or not; NaN without a failure."""


def recovery(slope: ArrayLike, gain: ArrayLike, contracted_gain: ArrayLike) -> Recovery:
    """Recovery fraction and mean gain of a contraction over the finite-step failures.

    A failure (A > 0, ΔU < 0) is recovered when φ(α_c) > 0; the mean gain averages φ(α_c) over the same
    failures. α_c may be shared (the paper's 1/4 is `CONTRACTION`) or chosen per update.

    Args:
        slope: A, one entry per update.
        gain: ΔU.
        contracted_gain: φ(α_c).

    >>> recovery([0.2, 0.1, 0.3], [-0.1, -0.2, 0.1], [0.02, -0.01, 0.05])
    Recovery(failures=2, recovered=1, fraction=0.5, mean_gain=0.005)
    """
    slope, gain, contracted = per_update(slope=slope, gain=gain, contracted_gain=contracted_gain)
    require(contracted.ndim > 0, "contracted_gain is one number", "give one entry per update")
    gains = contracted[np.broadcast_to(classify(slope, gain) == Outcome.FINITE_STEP_FAILURE, contracted.shape)]
    recovered = int(np.count_nonzero(gains > 0))
    if not gains.size:
        return Recovery(0, 0, np.nan, np.nan)
    return Recovery(gains.size, recovered, recovered / gains.size, float(gains.mean()))
