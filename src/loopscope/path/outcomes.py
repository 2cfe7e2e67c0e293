"""What an update did, what its quadratic model predicts, and what a shorter step would have done; grids of scales.

Definition (Finite-Step Failure) and its margin variant; Eqs. (quadratic-model) and (predicted-step); step contraction
of Section "Prediction and Fixed-Direction Intervention"; Eq. (oracle-utilities) and Appendix "Oracle Gains". Section
4.1 and Appendix D for the grids that are measured, Appendix "Finite Action Sets" for choices from them.
"""

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from loopscope.errors import LoopscopeError
from loopscope.path.arrays import (
    Bools,
    FloatArray,
    Floats,
    Ints,
    as_floats,
    finite,
    partition,
    per_update,
    plain,
    quiet,
    same_updates,
    sampled,
)

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


GRID_POINTS = 21
"""Points of the measured grid {0, 0.05, …, 1}."""

GRID: tuple[float, ...] = tuple(index / (GRID_POINTS - 1) for index in range(GRID_POINTS))
"""The grid on which φ is sampled; its every fifth point is the five-point action set."""

CURVATURE_SCALES: tuple[float, ...] = GRID[:: (GRID_POINTS - 1) // 4]
"""The five scales at which curvature along the path is stored, and the five-point action set itself."""

PATH_NODES = 257
"""The number of nodes of a stored FP64 path: 256 cells."""

DIFFERENCE_SPACINGS: tuple[float, ...] = (0.01, 0.005, 0.0025)
"""The spacings at which φ''' is checked against central differences of φ''."""

# Decimal midpoints such as 0.075 and decimal grid points such as 0.15 are not float64 numbers. Eight units in
# the last place of 1/2 cover the rounding of both, and are far below any scale difference that matters.
TIE_TOLERANCE = 2.0**-50


class GridAction(NamedTuple):
    """A grid point per update."""

    alpha: Floats
    """The scale."""
    index: Ints
    """Its position on the grid."""


class GridOptimum(NamedTuple):
    """The best grid point per update."""

    alpha: Floats
    """α*_A, the smallest maximising grid point."""
    index: Ints
    """Its position on the grid."""
    value: Floats
    """The sampled value there."""


def uniform_grid(points: int = GRID_POINTS) -> FloatArray:
    """`points` equally spaced scales k/(points - 1), each the float64 nearest to its exact value.

    The defaults give 𝒜 = {0, 0.05, ..., 1} of the step-scale evaluation; `uniform_grid(5)` is the
    intervention set ℬ = {0, 0.25, 0.5, 0.75, 1}.

    >>> uniform_grid(5)
    array([0.  , 0.25, 0.5 , 0.75, 1.  ])
    """
    if points < 2:
        raise LoopscopeError(f"points is {points}: a grid has at least the two scales 0 and 1")
    return np.arange(points) / (points - 1)


def scales_up_to(end: float) -> FloatArray:
    """The scales 0, 0.05, …, `end`: those of `GRID`, and as dense beyond 1.

    >>> scales_up_to(1.1)[-3:]
    array([1.  , 1.05, 1.1 ])
    """
    return np.arange(round(end * (GRID_POINTS - 1)) + 1) / (GRID_POINTS - 1)


def grid_optimum(grid: ArrayLike, values: ArrayLike) -> GridOptimum:
    """α*_A = min argmax of φ over the grid (Eq. grid-optimum); ties choose the smallest scale.

    Args:
        grid: 0 = a_0 < ... < a_m = 1.
        values: φ or U on the grid, shape (..., m + 1); a constant added to an update changes nothing but
            the value.

    >>> grid_optimum([0.0, 0.5, 1.0], [0.0, 0.25, 0.25])
    GridOptimum(alpha=0.5, index=1, value=0.25)
    """
    grid = partition("grid", grid)
    values = sampled("values", values, grid)
    index = values.argmax(axis=-1)
    return GridOptimum(plain(grid[index]), plain(index), plain(values.max(axis=-1)))


def nearest_action(grid: ArrayLike, scale: ArrayLike) -> GridAction:
    """The grid point nearest to a predicted scale, equal distances resolved toward the smaller point.

    Distances that differ by no more than 2 · 2⁻⁵⁰ count as equal, so that 0.075 on the grid of twentieths
    is a tie (and goes to 0.05) however its decimal digits were rounded.

    >>> nearest_action(uniform_grid(21), [0.075, 0.0751, 0.025, 1.0]).alpha
    array([0.05, 0.1 , 0.  , 1.  ])
    """
    grid = partition("grid", grid)
    spacing = np.diff(grid)
    # A tolerance beyond the cell itself would skip points of an extremely fine grid.
    boundary = grid[:-1] + 0.5 * spacing + np.minimum(TIE_TOLERANCE, spacing / 8)
    index = np.searchsorted(boundary, as_floats("scale", scale), side="left")
    return GridAction(plain(grid[index]), plain(index))


def grid_regret(grid: ArrayLike, values: ArrayLike, scale: ArrayLike) -> Floats:
    """φ(α*_A) - φ(nearest grid action to the scale), as in Table "Local quadratic scale prediction".

    >>> grid_regret([0.0, 0.5, 1.0], [0.0, 0.25, 0.125], 0.9)
    0.125
    """
    nodes = partition("grid", grid)
    values = sampled("values", values, nodes)
    index = np.asarray(nearest_action(nodes, scale).index)
    same_updates(values=values.shape[:-1], scale=index.shape)
    index = np.broadcast_to(index, np.broadcast_shapes(index.shape, values.shape[:-1]))
    spread = np.broadcast_to(values, (*index.shape, nodes.size))
    chosen = np.take_along_axis(spread, index[..., None], axis=-1)[..., 0]
    with quiet():
        return plain(finite("the regret", values.max(axis=-1) - chosen))
