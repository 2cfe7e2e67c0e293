"""What a bound ε of the slope residual |φ' - q'| says about the predictions.

ε is the deviation C(1), its upper sum C̄ (`curvature_deviation`) or the envelope S̄ (`residual_envelope`):
each bounds |φ'(a) - q'(a)| on [0, 1], which is all that the proofs use. κ = -2Q throughout. The bounds hold
in exact arithmetic; rounding is not included.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from loopscope.path._arrays import (
    FloatArray,
    Floats,
    Ints,
    finite,
    non_negative,
    per_update,
    plain,
    quiet,
    unit_interval,
)


class EndpointBound(NamedTuple):
    """The gain of the full update as the quadratic model confines it."""

    lower: Floats
    """A + Q - ε ≤ ΔU."""
    upper: Floats
    """ΔU ≤ A + Q + ε."""
    sign: Ints
    """+1 or -1 where the sign of ΔU is guaranteed, |A + Q| > ε; 0 where it is not."""


def endpoint_bound(slope: ArrayLike, quadratic: ArrayLike, deviation: ArrayLike) -> EndpointBound:
    """|ΔU - (A + Q)| ≤ ε, and the sign guarantee for |A + Q| > ε (Eq. endpoint-prediction-bound).

    Args:
        slope: A.
        quadratic: Q, of any sign.
        deviation: ε ≥ 0.

    >>> endpoint_bound(0.5, -1.0, 0.125)
    EndpointBound(lower=-0.625, upper=-0.375, sign=-1)
    """
    slope, quadratic, deviation = per_update(slope=slope, quadratic=quadratic, deviation=deviation)
    non_negative("deviation", deviation)
    with quiet():
        prediction = slope + quadratic
        lower = finite("A + Q - deviation", prediction - deviation)
        upper = finite("A + Q + deviation", prediction + deviation)
    sign = np.sign(prediction).astype(np.int8) * (np.abs(prediction) > deviation)
    return EndpointBound(plain(lower), plain(upper), plain(sign))


def scale_bound(deviation: ArrayLike, quadratic: ArrayLike, *, capped: bool = True) -> Floats:
    """|α̂ - α*| ≤ min{1, ε/κ} for Q < 0 (Theorem (Integrated Curvature Approximation)).

    It holds for every global maximiser α* of φ. For Q ≥ 0 no ε gives better than 1 (Proposition (Location
    Instability for Q ≥ 0)). With `capped=False` the minimum with one is not taken, as in Table "Scale bounds
    on the complete mathematical benchmarks", and Q ≥ 0 gives infinity.

    >>> scale_bound([0.1, 3.0, 0.1], [-0.5, -0.5, 0.5])
    array([0.1, 1. , 1. ])
    """
    bound = _over_kappa(*_deviation_and_half_kappa(deviation, quadratic))
    return plain(np.minimum(bound, 1.0) if capped else bound)


def pointwise_scale_bound(
    alpha: ArrayLike, slope_at_alpha: ArrayLike, slope: ArrayLike, quadratic: ArrayLike
) -> Floats:
    """|α̂ - α*| ≤ |φ'(α*) - q'(α*)| / κ, which keeps signed cancellation up to α*.

    First inequality of Eq. (curvature-scale-error): the numerator is |∫₀^{α*} [φ''(s) - φ''(0)] ds|.
    Infinite for Q ≥ 0.

    Args:
        alpha: α*, a global maximiser of φ.
        slope_at_alpha: φ'(α*), zero for an interior maximiser.
        slope: A.
        quadratic: Q.

    >>> pointwise_scale_bound(0.5, 0.0, 0.5, -0.25)
    0.5
    """
    alpha, slope_at_alpha, slope, quadratic = per_update(
        alpha=alpha, slope_at_alpha=slope_at_alpha, slope=slope, quadratic=quadratic
    )
    unit_interval("alpha", alpha)
    with quiet():
        residual = finite("the residual", np.abs(slope_at_alpha - slope - 2 * quadratic * alpha))
    return plain(_over_kappa(residual, np.maximum(-quadratic, 0.0)))


def regret_bound(deviation: ArrayLike, quadratic: ArrayLike, *, refined: bool = True) -> Floats:
    """φ(α*) - φ(α̂) ≤ ε²/(2κ), refined by the scale domain; ε where Q ≥ 0.

    Q < 0: Theorem (Integrated Curvature Approximation) gives ε²/(2κ); Corollary (Refinement by the Scale
    Domain) replaces it by ε - κ/2 where ε > κ (`refined=False` leaves that out). Q ≥ 0: Proposition (Value
    Bound for an Arbitrary Quadratic) gives ε, which is the limit of the refined bound as κ falls to zero.

    >>> regret_bound([0.1, 1.5, 0.1], [-0.5, -0.5, 0.5])
    array([0.005, 1.   , 0.1  ])
    """
    deviation, half_kappa = _deviation_and_half_kappa(deviation, quadratic)
    ratio = _over_kappa(deviation, half_kappa)
    with quiet():
        integrated = 0.5 * deviation * ratio
    linear = ratio > 1 if refined else half_kappa == 0
    return plain(np.where(linear, deviation - half_kappa, integrated))


def diameter_bound(deviation: ArrayLike, quadratic: ArrayLike) -> Floats:
    """Any two global maximisers lie within min{1, 2ε/κ} (Corollary (Zero Deviation and Multiple Maximisers)).

    For Q ≥ 0 there is no bound below 1.

    >>> diameter_bound(0.1, -0.5)
    0.2
    """
    with quiet():
        return plain(np.minimum(2 * _over_kappa(*_deviation_and_half_kappa(deviation, quadratic)), 1.0))


def _deviation_and_half_kappa(deviation: ArrayLike, quadratic: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """ε and κ/2 = max{0, -Q}; doubling Q could leave float64."""
    deviation, quadratic = per_update(deviation=deviation, quadratic=quadratic)
    return non_negative("deviation", deviation), np.maximum(-quadratic, 0.0)


def _over_kappa(numerator: FloatArray, half_kappa: FloatArray) -> FloatArray:
    """The numerator over κ; infinite where κ = 0, so that the trivial bound takes over."""
    shape = np.broadcast_shapes(numerator.shape, half_kappa.shape)
    curved = np.broadcast_to(half_kappa > 0, shape)
    with quiet():
        ratio: FloatArray = 0.5 * np.divide(numerator, half_kappa, out=np.full(shape, np.inf), where=curved)
    return ratio
