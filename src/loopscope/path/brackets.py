"""Narrower brackets from curvature bounds, and what a bracket says about errors.

Appendix "Refinement of the numerical optimum estimate" and the interval propagation of Appendix "Refined
numerical optima".
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from loopscope.path._arrays import Floats, finite, per_update, plain, quiet, require, unit_interval

# Rounded slopes can make intervals that share one point miss each other by this much.
MISS = 1e-12


class Interval(NamedTuple):
    """lower ≤ quantity ≤ upper, per update."""

    lower: Floats
    upper: Floats


def refine_bracket(
    lower: ArrayLike,
    upper: ArrayLike,
    slope_lower: ArrayLike,
    slope_upper: ArrayLike,
    mu: ArrayLike,
    nu: ArrayLike,
) -> Interval:
    """Intersect [l, u] with what -ν ≤ φ'' ≤ -μ says about the zero of φ' from either end.

    From φ'(l) > 0 ≥ φ'(u): the zero lies in [l + φ'(l)/ν, l + φ'(l)/μ] and in [u + φ'(u)/μ, u + φ'(u)/ν].

    Args:
        lower: l.
        upper: u > l.
        slope_lower: φ'(l) > 0.
        slope_upper: φ'(u) ≤ 0.
        mu: μ > 0, a lower bound of -φ'' throughout the bracket.
        nu: ν ≥ μ, an upper bound of -φ'' throughout the bracket.

    >>> refine_bracket(0.0, 1.0, 1.0, -1.0, mu=1.6, nu=2.5)
    Interval(lower=0.4, upper=0.6)
    """
    lower, upper, slope_lower, slope_upper, mu, nu = per_update(
        lower=lower, upper=upper, slope_lower=slope_lower, slope_upper=slope_upper, mu=mu, nu=nu
    )
    unit_interval("lower", lower)
    unit_interval("upper", upper)
    require(lower < upper, "lower does not lie below upper", "give an interior bracket")
    require(slope_lower > 0, "slope_lower is not positive", "the path must rise at the lower end")
    require(slope_upper <= 0, "slope_upper is positive", "the path must not rise at the upper end")
    require(mu > 0, "mu is not positive", "the refinement needs curvature that stays below zero")
    require(mu <= nu, "mu exceeds nu", "mu bounds -φ'' from below and nu from above")
    with quiet():
        low = np.maximum(np.maximum(lower, lower + slope_lower / nu), upper + slope_upper / mu)
        high = np.minimum(np.minimum(upper, lower + slope_lower / mu), upper + slope_upper / nu)
    require(
        low <= high + MISS,
        "no zero of φ' fits both the slopes and the curvature bounds",
        "mu and nu must hold on the whole bracket",
    )
    return Interval(plain(np.minimum(low, high)), plain(np.maximum(low, high)))


def scale_error_interval(predicted: ArrayLike, lower: ArrayLike, upper: ArrayLike) -> Interval:
    """|α̂ - α*| for α* known to lie in [l, u]: its smallest and largest possible value.

    >>> scale_error_interval(0.5, 0.25, 0.375)
    Interval(lower=0.125, upper=0.25)
    """
    predicted, lower, upper = per_update(predicted=predicted, lower=lower, upper=upper)
    require(lower <= upper, "lower exceeds upper", "give a bracket")
    below, above = lower - predicted, predicted - upper
    smallest = np.maximum(np.maximum(below, above), 0.0)
    return Interval(plain(smallest), plain(np.maximum(-below, -above)))


def regret_interval(
    predicted_value: ArrayLike,
    lower: ArrayLike,
    upper: ArrayLike,
    value_lower: ArrayLike,
    value_upper: ArrayLike,
    slope_lower: ArrayLike,
    slope_upper: ArrayLike,
) -> Interval:
    """φ(α*) - φ(α̂) for a concave path whose maximiser lies in [l, u].

    φ(α*) is at least the larger of φ(l) and φ(u). Concavity keeps φ below its tangents at l and u, so it is at
    most the smaller of φ(l) + max{φ'(l), 0}(u - l) and φ(u) + max{-φ'(u), 0}(u - l). Both ends are cut at
    zero, because α* is a maximiser.

    Args:
        predicted_value: φ(α̂).
        lower: l, as in `ConcaveOptimum.lower`.
        upper: u ≥ l.
        value_lower: φ(l).
        value_upper: φ(u).
        slope_lower: φ'(l).
        slope_upper: φ'(u).

    >>> regret_interval(0.0, 0.25, 0.5, 1.0, 1.0, 0.5, -0.5)
    Interval(lower=1.0, upper=1.125)
    """
    predicted_value, lower, upper, value_lower, value_upper, slope_lower, slope_upper = per_update(
        predicted_value=predicted_value,
        lower=lower,
        upper=upper,
        value_lower=value_lower,
        value_upper=value_upper,
        slope_lower=slope_lower,
        slope_upper=slope_upper,
    )
    require(lower <= upper, "lower exceeds upper", "give a bracket")
    width = upper - lower
    with quiet():
        least = np.maximum(value_lower, value_upper)
        rise = np.maximum(slope_lower, 0.0) * width
        fall = np.maximum(-slope_upper, 0.0) * width
        # Rounding in nearly flat values can leave a tangent below the other end.
        most = np.maximum(np.minimum(value_lower + rise, value_upper + fall), least)
        smallest = np.maximum(finite("the regret", least - predicted_value), 0.0)
        largest = np.maximum(finite("the regret", most - predicted_value), 0.0)
    return Interval(plain(smallest), plain(largest))
