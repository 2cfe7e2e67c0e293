"""Bounds from one global bound M of |φ'''|.

Corollary (Third-Derivative Specialisation), Theorem (Quadratic Step-Scale Approximation) and Corollary
(Combined Integrated and Taylor Regret Bounds). M must hold on all of [0, 1]; κ = -2Q.
"""

import numpy as np
from numpy.typing import ArrayLike

from loopscope.path._arrays import Floats, non_negative, per_update, plain, unit_interval
from loopscope.path.bounds import regret_bound, scale_bound


def taylor_deviation_bound(M: ArrayLike, alpha: ArrayLike = 1.0) -> Floats:
    """C(a) ≤ M a²/2 (Corollary (Third-Derivative Specialisation)).

    >>> taylor_deviation_bound(4.0, 0.5)
    0.5
    """
    M, alpha = per_update(M=M, alpha=alpha)
    non_negative("M", M)
    unit_interval("alpha", alpha)
    return plain(0.5 * M * alpha**2)


def taylor_scale_bound(M: ArrayLike, quadratic: ArrayLike, alpha: ArrayLike = 1.0, *, capped: bool = True) -> Floats:
    """|α̂ - α*| ≤ M (α*)²/(2κ) ≤ M/(2κ) for Q < 0 (Eq. step-distance); 1 for Q ≥ 0.

    Args:
        M: a bound of |φ'''| on [0, 1].
        quadratic: Q.
        alpha: α* where it is known; 1 gives the bound that needs no knowledge of it.
        capped: take the minimum with one. Uncapped, Q ≥ 0 gives infinity.

    >>> taylor_scale_bound(1.0, -1.0)
    0.25
    """
    M, quadratic, alpha = per_update(M=M, quadratic=quadratic, alpha=alpha)
    return scale_bound(taylor_deviation_bound(M, alpha), quadratic, capped=capped)


def taylor_regret_bound(M: ArrayLike, alpha: ArrayLike = 1.0, predicted: ArrayLike = 1.0) -> Floats:
    """φ(α*) - φ(α̂) ≤ (M/6)((α*)³ + α̂³) ≤ M/3, for every sign of Q (Eq. step-regret).

    Args:
        M: a bound of |φ'''| on [0, 1].
        alpha: α*, or 1 where it is not known.
        predicted: α̂, or 1.

    >>> taylor_regret_bound(6.0, 0.5, 0.5)
    0.25
    """
    M, alpha, predicted = per_update(M=M, alpha=alpha, predicted=predicted)
    non_negative("M", M)
    unit_interval("alpha", alpha)
    unit_interval("predicted", predicted)
    return plain(M / 6 * (alpha**3 + predicted**3))


def combined_regret_bound(
    M: ArrayLike,
    quadratic: ArrayLike,
    deviation: ArrayLike | None = None,
    alpha: ArrayLike = 1.0,
    predicted: ArrayLike = 1.0,
) -> Floats:
    """min{ (M/6)((α*)³ + α̂³), ε²/(2κ) }, the better of the Taylor and the integrated bound.

    Corollary (Combined Integrated and Taylor Regret Bounds). Without `deviation`, ε = M/2 ≥ C(1); with
    neither scale known this is then min{M/3, M²/(8κ)}. The domain refinement of `regret_bound` is applied
    as well, and Q ≥ 0 takes its value bound ε.

    >>> combined_regret_bound(1.0, -1.0)
    0.0625
    """
    M, quadratic, alpha, predicted = per_update(M=M, quadratic=quadratic, alpha=alpha, predicted=predicted)
    taylor = taylor_regret_bound(M, alpha, predicted)
    if deviation is None:
        deviation = taylor_deviation_bound(M)
    per_update(taylor=taylor, deviation=deviation)
    return plain(np.minimum(taylor, regret_bound(deviation, quadratic)))
