"""The local quadratic model q(α) = Aα + Qα²: Eqs. (quadratic-model) and (predicted-step)."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from loopscope.errors import LoopscopeError
from loopscope.path.arrays import Floats, as_floats, finite, per_update, plain, quiet


class QuadraticPrediction(NamedTuple):
    """What the derivatives at the current state predict for the whole update."""

    gain: Floats
    """A + Q, the predicted gain of the full update."""
    alpha: Floats
    """α̂, the predicted utility-maximising scale in [0, 1]."""
    root: Floats
    """r⁽²⁾ = -A/Q, where the predicted gain returns to zero; NaN unless A > 0 and Q < 0."""


def predict(slope: ArrayLike, quadratic: ArrayLike) -> QuadraticPrediction:
    """Every prediction of the quadratic model at once.

    Args:
        slope: A = φ'(0), one entry per update.
        quadratic: Q = φ''(0)/2, one entry per update.

    >>> predict(0.5, -1.0)
    QuadraticPrediction(gain=-0.5, alpha=0.25, root=0.5)
    """
    return QuadraticPrediction(
        endpoint_prediction(slope, quadratic),
        predicted_scale(slope, quadratic),
        quadratic_root(slope, quadratic),
    )


def quadratic_value(alpha: ArrayLike, slope: ArrayLike, quadratic: ArrayLike) -> Floats:
    """q(α) = Aα + Qα² (Eq. quadratic-model), the arguments broadcast against each other.

    For many updates on a grid give `slope[:, None]` and `quadratic[:, None]`.

    >>> quadratic_value(0.25, 0.5, -1.0)
    0.0625
    """
    alpha, slope, quadratic = as_floats("alpha", alpha), as_floats("slope", slope), as_floats("quadratic", quadratic)
    try:
        np.broadcast_shapes(alpha.shape, slope.shape, quadratic.shape)
    except ValueError:
        raise LoopscopeError(
            f"alpha {alpha.shape}, slope {slope.shape} and quadratic {quadratic.shape} do not broadcast: "
            "give slope[:, None] and quadratic[:, None] to evaluate many updates on a grid"
        ) from None
    with quiet():
        return plain(finite("q(alpha)", alpha * (slope + quadratic * alpha)))


def endpoint_prediction(slope: ArrayLike, quadratic: ArrayLike) -> Floats:
    """q(1) = A + Q, the predicted gain of the full update (Section "Predicting the Utility-Maximising Scale").

    >>> endpoint_prediction(0.5, -1.0)
    -0.5
    """
    slope, quadratic = per_update(slope=slope, quadratic=quadratic)
    return quadratic_value(1.0, slope, quadratic)


class ScaleCase(NamedTuple):
    """Which case of Eq. (predicted-step) gives α̂; where neither holds it is 0."""

    at_one: Any
    """α̂ = 1."""
    interior: Any
    """α̂ = -A/(2Q), inside (0, 1)."""


def scale_case(slope: Any, quadratic: Any) -> ScaleCase:
    """The tie rule of α̂, by comparisons alone, for NumPy arrays and torch tensors alike: the smallest maximiser wins.

    Q < 0: 1 if A ≥ -2Q, inside if A > 0. Q ≥ 0: 1 if A + Q > 0. Doubling |Q| is exact or overflows to infinity, and
    A ≥ ∞ is rightly false; so neither overflow nor denormal coefficients change the case that applies.
    """
    concave = quadratic < 0
    at_one = (concave & (slope >= -2 * quadratic)) | (~concave & (slope > -quadratic))
    return ScaleCase(at_one, concave & (slope > 0) & ~at_one)


def predicted_scale(slope: ArrayLike, quadratic: ArrayLike) -> Floats:
    """α̂ = min argmax of q over [0, 1], the smallest maximiser (Eq. predicted-step).

    Q < 0: clip(-A/(2Q)) to [0, 1]. Q ≥ 0: 1 if A + Q > 0, else 0; so A = Q = 0 gives 0, the smallest of all
    maximisers (`scale_case`). A scale below half the smallest
    positive float64 rounds to 0.

    >>> predicted_scale([0.5, -0.5, 4.0, 1.0, -1.0], [-1.0, -1.0, -1.0, 0.0, 1.0])
    array([0.25, 0.  , 1.  , 1.  , 0.  ])
    """
    slope, quadratic = per_update(slope=slope, quadratic=quadratic)
    with quiet():
        case = scale_case(slope, quadratic)
        half = 0.5 * np.where(case.interior, slope / -quadratic, 0.0)
    return plain(np.where(case.at_one, 1.0, half))


def quadratic_root(slope: ArrayLike, quadratic: ArrayLike) -> Floats:
    """r⁽²⁾ = -A/Q, the positive root of q, for A > 0 and Q < 0; NaN for every other sign.

    It predicts where the gain returns to zero and is twice the unclipped maximising scale, so it may lie
    beyond 1 (and is infinite where the quotient exceeds float64). The scale bounds do not apply to it; a
    two-sided curvature bound does (`root_sandwich`). Within A > 0, Q < 0 the condition r⁽²⁾ < 1 says no more
    than A + Q < 0.

    >>> quadratic_root([0.5, 0.5, -0.5], [-1.0, 1.0, -1.0])
    array([0.5, nan, nan])
    """
    slope, quadratic = per_update(slope=slope, quadratic=quadratic)
    with quiet():
        return plain(np.where((slope > 0) & (quadratic < 0), slope / -quadratic, np.nan))
