"""Scales that are sure to help: Corollary (Beneficial Step Scales)."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from loopscope.errors import LoopscopeError
from loopscope.path.arrays import (
    Bools,
    FloatArray,
    Floats,
    finite,
    non_negative,
    per_update,
    plain,
    quiet,
    unit_interval,
)

SAFE_FRACTION = 0.9


class BeneficialRange(NamedTuple):
    """Every scale in (0, end) has positive gain, and `end` itself where `closed` is true."""

    end: Floats
    """min{1, 2A/L_D}; 1 where L_D = 0; NaN where A ≤ 0, for which the corollary promises nothing."""
    closed: Bools
    """Whether the full update itself is covered: A > 0 and 1 < 2A/L_D."""


def beneficial_lower_bound(alpha: ArrayLike, slope: ArrayLike, L_D: ArrayLike) -> Floats:
    """φ(α) ≥ αA - L_D α²/2 wherever φ'' ≥ -L_D on [0, 1] (Eq. beneficial-step).

    The inequality holds for every sign of A; only for A > 0 does it promise a gain.

    Args:
        alpha: scales in [0, 1].
        slope: A = φ'(0).
        L_D: a bound of negative curvature valid on the whole segment, L_D ≥ 0.

    >>> beneficial_lower_bound(0.5, 1.0, 2.0)
    0.25
    """
    alpha, slope, L_D = per_update(alpha=alpha, slope=slope, L_D=L_D)
    unit_interval("alpha", alpha)
    non_negative("L_D", L_D)
    with quiet():
        return plain(finite("the lower bound", alpha * (slope - 0.5 * L_D * alpha)))


def beneficial_range(slope: ArrayLike, L_D: ArrayLike) -> BeneficialRange:
    """The sufficient range of improving scales, 0 < α ≤ 1 with α < 2A/L_D (Corollary, Beneficial Step Scales).

    >>> beneficial_range(0.25, 1.0)
    BeneficialRange(end=0.5, closed=False)
    >>> beneficial_range(0.25, 0.0)
    BeneficialRange(end=1.0, closed=True)
    """
    slope, L_D = per_update(slope=slope, L_D=L_D)
    non_negative("L_D", L_D)
    limit = _limit(slope, L_D)
    return BeneficialRange(plain(np.minimum(limit, 1.0)), plain(limit > 1))


def safe_scale(slope: ArrayLike, L_D: ArrayLike, fraction: float = SAFE_FRACTION) -> Floats:
    """α_safe = min{1, 0.9 · 2A/L_D} (Appendix "Scale selected from the sufficient range").

    NaN where A ≤ 0; 1 where A > 0 and L_D = 0. `fraction` replaces 0.9 and lies in (0, 1).

    >>> safe_scale([0.25, 3.0, -1.0], 1.0)
    array([0.45, 1.  ,  nan])
    """
    if not 0 < fraction < 1:
        raise LoopscopeError(f"fraction is {fraction}: give a number between 0 and 1, such as 0.9")
    slope, L_D = per_update(slope=slope, L_D=L_D)
    non_negative("L_D", L_D)
    return plain(np.minimum(fraction * _limit(slope, L_D), 1.0))


def _limit(slope: FloatArray, L_D: FloatArray) -> FloatArray:
    """2A/L_D; infinite for L_D = 0, NaN for A ≤ 0."""
    shape = np.broadcast_shapes(slope.shape, L_D.shape)
    limit = np.full(shape, np.inf)
    with quiet():
        np.divide(slope, L_D, out=limit, where=np.broadcast_to(L_D > 0, shape))
        limit = 2 * limit
    return np.where(slope > 0, limit, np.nan)
