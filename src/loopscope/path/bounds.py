"""What a bound ε of the slope residual |φ' - q'| says about the predictions.

ε is the deviation C(1), its upper sum C̄ (`curvature_deviation`) or the envelope S̄ (`residual_envelope`):
each bounds |φ'(a) - q'(a)| on [0, 1], which is all that the proofs use. κ = -2Q throughout. The bounds hold
in exact arithmetic; rounding is not included.

With one global bound M of |φ'''| on all of [0, 1] the same statements are Corollary (Third-Derivative Specialisation),
Theorem (Quadratic Step-Scale Approximation) and Corollary (Combined Integrated and Taylor Regret Bounds). The envelope
is Eq. (signed-residual-envelope), Proposition (Signed-Residual Approximation Bounds).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from loopscope.path.arrays import (
    FloatArray,
    Floats,
    Ints,
    as_floats,
    cellwise,
    finite,
    non_negative,
    partition,
    per_update,
    plain,
    quiet,
    row_blocks,
    same_updates,
    sampled,
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


def taylor_value_bound(M: ArrayLike, alpha: ArrayLike = 1.0) -> Floats:
    """|φ(α) - q(α)| ≤ M α³/6 for the quadratic model q(α) = Aα + Qα² (Eq. app-taylor-remainders).

    >>> taylor_value_bound(6.0, 0.5)
    0.125
    """
    M, alpha = per_update(M=M, alpha=alpha)
    non_negative("M", M)
    unit_interval("alpha", alpha)
    return plain(M / 6 * alpha**3)


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


def residual_envelope(
    nodes: ArrayLike,
    slopes: ArrayLike,
    quadratic: ArrayLike,
    lipschitz: ArrayLike,
    deviation: ArrayLike | None = None,
) -> Floats:
    """S̄, a bound of |e(a)| = |φ'(a) - q'(a)| on [0, 1] that keeps cancelling curvature deviations.

    With e(t) = φ'(t) - A - 2Qt and |φ'''| ≤ L_ℓ throughout cell ℓ,
    S̄ = min{ C̄, max_ℓ [ max{|e(t_ℓ)|, |e(t_{ℓ+1})|} + L_ℓ h_ℓ²/8 ] }.
    S̄ takes the place of C(1) in `scale_bound`, `regret_bound` and `endpoint_bound`.

    Args:
        nodes: 0 = t_0 < ... < t_N = 1.
        slopes: φ' at the nodes, shape (..., N + 1); the first is A.
        quadratic: Q = φ''(0)/2.
        lipschitz: L_ℓ ≥ 0 bounding |φ'''| on each cell, shape (N,) or (..., N), or one number for all.
        deviation: C̄ from `curvature_deviation(...).upper`; without it the minimum is not taken.

    >>> residual_envelope([0.0, 0.5, 1.0], [1.0, 0.5, 0.25], quadratic=-0.5, lipschitz=2.0)
    0.3125
    """
    nodes = partition("nodes", nodes)
    slopes = sampled("slopes", slopes, nodes)
    quadratic = as_floats("quadratic", quadratic)
    constants = cellwise("lipschitz", lipschitz, nodes)
    same_updates(slopes=slopes.shape[:-1], quadratic=quadratic.shape, lipschitz=constants.shape[:-1])
    shape = np.broadcast_shapes(slopes.shape[:-1], quadratic.shape, constants.shape[:-1])
    envelope = np.empty(shape)
    quadratic = np.broadcast_to(quadratic, shape).reshape(-1, 1)
    slopes = np.broadcast_to(slopes, (*shape, nodes.size)).reshape(-1, nodes.size)
    width = np.diff(nodes)
    constants = np.broadcast_to(constants, (*shape, width.size)).reshape(-1, width.size)
    with quiet():
        for rows in row_blocks(len(slopes)):
            residual = np.abs(slopes[rows] - slopes[rows, :1] - 2 * quadratic[rows] * nodes)
            ends = np.maximum(residual[:, :-1], residual[:, 1:])
            envelope.reshape(-1)[rows] = (ends + 0.125 * constants[rows] * width**2).max(axis=-1)
    finite("the residual", envelope)
    if deviation is not None:
        upper = non_negative("deviation", as_floats("deviation", deviation))
        same_updates(slopes=shape, deviation=upper.shape)
        envelope = np.minimum(envelope, upper)
    return plain(envelope)
