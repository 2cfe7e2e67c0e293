"""Bounds of the paper from bounds of derivatives, and the finite sums and envelopes that provide those.

ε bounds the slope residual |φ' - q'| on [0, 1]: it is the deviation C(1), its upper sum C̄ (`curvature_deviation`), the
envelope S̄ (`residual_envelope`) or M/2 from a global bound M of |φ'''|. κ = -2Q throughout. The statements are Theorem
(Integrated Curvature Approximation), Theorem (Quadratic Step-Scale Approximation), Corollary (Beneficial Step Scales),
Proposition (Finite-Partition Curvature Bounds), Proposition (Signed-Residual Approximation Bounds), Proposition
(Pathwise Progress Decomposition) and Appendix "Derivative envelopes and refinement". They hold in exact arithmetic;
rounding is not included.

Statements on partition cells suppose |φ''(u) - φ''(v)| ≤ L_ℓ |u - v| throughout cell ℓ. Samples cannot prove that, but
they can refute it, and a refuted constant gives no bound.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from loopscope.errors import LoopscopeError
from loopscope.path.arrays import (
    FloatArray,
    Floats,
    Interval,
    cellwise,
    finite,
    partition,
    per_update,
    plain,
    quiet,
    same_updates,
    sampled,
)

SAFE_FRACTION = 0.9
# Curvatures may come from FP32 readouts: a change within this fraction of the largest curvature of the
# update is rounding, not a contradiction.
ROUNDING = 1e-6
# Derivatives at the nodes are float64 results: every bound of an envelope is widened by this much of its size.
ALLOWANCE = 1e-11
# Cubic interpolation of φ'' through the four nodes around a cell.
STENCIL = 4


def scale_bound(deviation: ArrayLike, quadratic: ArrayLike, *, capped: bool = True) -> Floats:
    """|α̂ - α*| ≤ min{1, ε/κ} for Q < 0 (Theorem (Integrated Curvature Approximation)).

    It holds for every global maximiser α* of φ. For Q ≥ 0 no ε gives better than 1 (Proposition (Location
    Instability for Q ≥ 0)). With `capped=False` the minimum with one is not taken, as in Table "Scale bounds
    on the complete mathematical benchmarks", and Q ≥ 0 gives infinity.

    >>> scale_bound([0.1, 3.0, 0.1], [-0.5, -0.5, 0.5])
    array([0.1, 1. , 1. ])
    """
    *_, ratio = _over_kappa(deviation, quadratic)
    return plain(np.minimum(ratio, 1.0) if capped else ratio)


def regret_bound(deviation: ArrayLike, quadratic: ArrayLike, *, refined: bool = True) -> Floats:
    """φ(α*) - φ(α̂) ≤ ε²/(2κ), refined by the scale domain; ε where Q ≥ 0.

    Q < 0: Theorem (Integrated Curvature Approximation) gives ε²/(2κ); Corollary (Refinement by the Scale
    Domain) replaces it by ε - κ/2 where ε > κ (`refined=False` leaves that out). Q ≥ 0: Proposition (Value
    Bound for an Arbitrary Quadratic) gives ε, which is the limit of the refined bound as κ falls to zero.

    >>> regret_bound([0.1, 1.5, 0.1], [-0.5, -0.5, 0.5])
    array([0.005, 1.   , 0.1  ])
    """
    deviation, half_kappa, ratio = _over_kappa(deviation, quadratic)
    with quiet():
        integrated = 0.5 * deviation * ratio
    linear = ratio > 1 if refined else half_kappa == 0
    return plain(np.where(linear, deviation - half_kappa, integrated))


def _over_kappa(deviation: ArrayLike, quadratic: ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
    """ε, κ/2 = max{0, -Q} (doubling Q could leave float64), and ε/κ, infinite where κ = 0: the trivial bound."""
    deviation, quadratic = per_update(deviation=deviation, quadratic=quadratic)
    half_kappa = np.maximum(-quadratic, 0.0)
    with quiet():
        return deviation, half_kappa, 0.5 * np.where(half_kappa > 0, deviation / half_kappa, np.inf)


def taylor_value_bound(M: ArrayLike, alpha: ArrayLike = 1.0) -> Floats:
    """|φ(α) - q(α)| ≤ M α³/6 for the quadratic model q(α) = Aα + Qα² (Eq. app-taylor-remainders).

    >>> taylor_value_bound(6.0, 0.5)
    0.125
    """
    M, alpha = per_update(M=M, alpha=alpha)
    return plain(M / 6 * alpha**3)


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
    return scale_bound(0.5 * M * alpha**2, quadratic, capped=capped)


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
    with quiet():
        return plain(finite("the lower bound", alpha * (slope - 0.5 * L_D * alpha)))


def beneficial_range(slope: ArrayLike, L_D: ArrayLike) -> Floats:
    """The end min{1, 2A/L_D} of the range in which every scale has a gain (Corollary, Beneficial Step Scales).

    1 where L_D = 0; NaN where A ≤ 0, for which the corollary promises nothing. The end itself belongs to it only
    where it is below 2A/L_D.

    >>> beneficial_range([0.25, 0.25], [1.0, 0.0])
    array([0.5, 1. ])
    """
    return plain(np.minimum(_limit(*per_update(slope=slope, L_D=L_D)), 1.0))


def safe_scale(slope: ArrayLike, L_D: ArrayLike, fraction: float = SAFE_FRACTION) -> Floats:
    """α_safe = min{1, 0.9 · 2A/L_D} (Appendix "Scale selected from the sufficient range").

    NaN where A ≤ 0; 1 where A > 0 and L_D = 0. `fraction` replaces 0.9 and lies in (0, 1).

    >>> safe_scale([0.25, 3.0, -1.0], 1.0)
    array([0.45, 1.  ,  nan])
    """
    if not 0 < fraction < 1:
        raise LoopscopeError(f"fraction is {fraction}: give a number between 0 and 1, such as 0.9")
    slope, L_D = per_update(slope=slope, L_D=L_D)
    return plain(np.minimum(fraction * _limit(slope, L_D), 1.0))


def _limit(slope: FloatArray, L_D: FloatArray) -> FloatArray:
    """2A/L_D; infinite for L_D = 0, NaN for A ≤ 0."""
    with quiet():
        limit = 2 * np.where(L_D > 0, slope / L_D, np.inf)
    return np.where(slope > 0, limit, np.nan)


def curvature_deviation(nodes: ArrayLike, curvature: ArrayLike, lipschitz: ArrayLike) -> Interval:
    """Lower and upper partition sums of C(1) (Eqs. curvature-cell-terms and curvature-enclosure).

    C(1) is ∫₀¹ |φ''(s) - φ''(0)| ds.
    With g = φ'' - φ''(0), h_ℓ the width of cell ℓ, T_ℓ = (h_ℓ/2)(|g(t_ℓ)| + |g(t_{ℓ+1})|) and
    P_ℓ = L_ℓ h_ℓ²/4:  Σ max{0, T_ℓ - P_ℓ} ≤ C(1) ≤ Σ (T_ℓ + P_ℓ).

    Args:
        nodes: 0 = t_0 < ... < t_N = 1.
        curvature: φ'' at the nodes, shape (..., N + 1).
        lipschitz: L_ℓ ≥ 0 with |φ''(u) - φ''(v)| ≤ L_ℓ |u - v| throughout cell ℓ (a bound of |φ'''| there),
            shape (N,) or (..., N), or one number for all. Sampled maxima of |φ'''| are not such bounds.

    >>> curvature_deviation([0.0, 0.5, 1.0], [-1.0, -1.5, -2.0], lipschitz=1.0)
    Interval(lower=0.375, upper=0.625)
    """
    nodes = partition("nodes", nodes)
    curvature = sampled("curvature", curvature, nodes)
    constants = cellwise("lipschitz", lipschitz, nodes)
    same_updates(curvature=curvature.shape[:-1], lipschitz=constants.shape[:-1])
    width = np.diff(nodes)
    largest = np.abs(curvature).max(axis=-1, keepdims=True)
    with quiet():
        contradicted = np.abs(np.diff(curvature)) - constants * width > ROUNDING * largest
        magnitude = np.abs(curvature - curvature[..., :1])
        trapezoid = 0.5 * width * (magnitude[..., :-1] + magnitude[..., 1:])
        slack = 0.25 * constants * width**2
        lower = np.maximum(trapezoid - slack, 0.0).sum(axis=-1)
        upper = (trapezoid + slack).sum(axis=-1)
    if contradicted.any():
        raise LoopscopeError(
            "lipschitz is smaller than the sampled change of curvature on cell "
            f"{np.nonzero(contradicted)[-1][0]}: give constants valid on the whole cell"
        )
    return Interval(plain(lower), plain(finite("the deviation", upper)))


def residual_envelope(
    nodes: ArrayLike,
    slopes: ArrayLike,
    quadratic: ArrayLike,
    lipschitz: ArrayLike,
    deviation: ArrayLike | None = None,
) -> Floats:
    """S̄, a bound of |e(a)| = |φ'(a) - q'(a)| on [0, 1] that keeps cancelling curvature deviations.

    With e(t) = φ'(t) - A - 2Qt and |φ'''| ≤ L_ℓ throughout cell ℓ,
    S̄ = min{ C̄, max_ℓ [ max{|e(t_ℓ)|, |e(t_{ℓ+1})|} + L_ℓ h_ℓ²/8 ] },
    the maximum widened by `ALLOWANCE` of the largest |φ'|: e is the small difference of rounded slopes.
    S̄ takes the place of C(1) in `scale_bound`, `regret_bound` and `endpoint_bound`.

    Args:
        nodes: 0 = t_0 < ... < t_N = 1.
        slopes: φ' at the nodes, shape (..., N + 1); the first is A.
        quadratic: Q = φ''(0)/2.
        lipschitz: L_ℓ ≥ 0 bounding |φ'''| on each cell, shape (N,) or (..., N), or one number for all.
        deviation: C̄ from `curvature_deviation(...).upper`; without it the minimum is not taken.

    >>> round(residual_envelope([0.0, 0.5, 1.0], [1.0, 0.5, 0.25], quadratic=-0.5, lipschitz=2.0), 9)
    0.3125
    """
    nodes = partition("nodes", nodes)
    slopes = sampled("slopes", slopes, nodes)
    (quadratic,) = per_update(quadratic=quadratic)
    constants = cellwise("lipschitz", lipschitz, nodes)
    same_updates(slopes=slopes.shape[:-1], quadratic=quadratic.shape, lipschitz=constants.shape[:-1])
    with quiet():
        residual = np.abs(slopes - slopes[..., :1] - 2 * quadratic[..., None] * nodes)
        ends = np.maximum(residual[..., :-1], residual[..., 1:])
        widest = (ends + 0.125 * constants * np.diff(nodes) ** 2).max(axis=-1)
        envelope = finite("the residual", widest + ALLOWANCE * np.abs(slopes).max(axis=-1))
    if deviation is None:
        return plain(envelope)
    (upper,) = per_update(deviation=deviation)
    same_updates(slopes=np.shape(envelope), deviation=upper.shape)
    return plain(np.minimum(envelope, upper))


class PaperEnvelope(NamedTuple):
    """Bounds on each cell, shape (N, m − 1)."""

    curvature_upper: FloatArray
    """Of −φ'', from above."""
    curvature_lower: FloatArray
    """Of −φ'', from below; at least 0, which holds for concave paths."""
    third: FloatArray
    """Of |φ'''|."""


def paper_envelope(
    nodes: FloatArray, curvature: FloatArray, third: FloatArray, range_moments: FloatArray
) -> PaperEnvelope:
    """The paper's bounds of −φ'' and |φ'''| on cells, from derivatives at the nodes and from ranges.

    The paper gives the construction in words: global moment bounds, a fourth-derivative bound on each of 256 cells, and
    endpoint values propagated across each cell. Here the moment bounds are those of a distribution on an interval of
    width R, the range of a token's logit displacement v, averaged over tokens:

        −φ'' ≤ R²/4,    |φ'''| ≤ R³/(6√3),    |φ''''| ≤ R⁴/8

    (Popoviciu; two points attain all three; κ₄ = μ₄ − 3V² lies between −2V² ≥ −R⁴/8 and μ₄ ≤ R⁴/12). With K the last of
    them and h a cell's width, |φ'''| on the cell is at most min{|φ'''(l)| + Kx, |φ'''(r)| + K(h − x)}, so at most
    (|φ'''(l)| + |φ'''(r)| + Kh)/2; with that constant L the same argument bounds −φ'' from both sides. It is looser
    than `readout.affine.envelope`, because R⁴ counts the vocabulary's two extreme entries as if they had all the
    probability. Shapes: N paths, m nodes, m − 1 cells.

    Args:
        nodes: evenly spaced, 0 = t_0 < … < t_N = 1.
        curvature: φ'' at the nodes, shape (N, m).
        third: φ''' at the nodes, likewise.
        range_moments: the means of R², R³ and R⁴ over the tokens of each path, shape (N, 3).

    >>> import numpy as np
    >>> two = np.array([[1.0, 1.0, 1.0]])  # one token, two equally likely logits that part at speed 1
    >>> found = paper_envelope(np.array([0.0, 1.0]), np.array([[-0.25, -0.25]]), np.zeros((1, 2)), two)
    >>> found.third.round(4), found.curvature_upper.round(4)
    (array([[0.0625]]), array([[0.25]]))
    """
    h = nodes[1] - nodes[0]
    square, cube, fourth = (range_moments[:, column, None] for column in range(3))
    largest = _across(np.abs(third), 0.125 * fourth * h)
    bound = np.minimum(largest, cube / (6.0 * math.sqrt(3.0))) * (1.0 + ALLOWANCE)
    spread = -curvature
    upper = np.minimum(_across(spread, bound * h), 0.25 * square) * (1.0 + ALLOWANCE)
    lower = -_across(-spread, bound * h)
    return PaperEnvelope(upper, np.maximum(lower - ALLOWANCE * upper, 0.0), bound)


def _across(values: FloatArray, rise: FloatArray) -> FloatArray:
    """What a function can reach on each cell if it has these values at the nodes and rises by no more than `rise`."""
    left, right = values[:, :-1], values[:, 1:]
    # By rounding the ends may differ by more than the rise.
    reached: FloatArray = np.maximum(0.5 * (left + right + rise), np.maximum(left, right))
    return reached


class PathwiseDecomposition(NamedTuple):
    """φ(α) against αA + ∫₀^α (α - s) φ''(s) ds, the integral taken by quadrature on the given nodes."""

    correction: Floats
    """The curvature correction ∫₀^α (α - s) φ''(s) ds."""
    expected: Floats
    """αA + correction, what the decomposition says the gain is."""
    residual: Floats
    """gain - expected."""


def pathwise_decomposition(
    nodes: ArrayLike, curvature: ArrayLike, slope: ArrayLike, gain: ArrayLike
) -> PathwiseDecomposition:
    """Check φ(α) = αA + ∫₀^α (α - s) φ''(s) ds (Eq. pathwise-progress) with α the last node.

    The weight α - s is integrated exactly against a piecewise cubic interpolant of φ'' (through four nodes).
    A finite-step failure has correction < -A < 0 at α = 1.

    Args:
        nodes: 0 = t_0 < ... < t_N = α ≤ 1.
        curvature: φ'' at the nodes, shape (..., N + 1).
        slope: A = φ'(0).
        gain: φ(α), so ΔU when the last node is 1.

    >>> pathwise_decomposition([0.0, 0.5, 1.0], [-2.0, -2.0, -2.0], slope=0.5, gain=-0.5)
    PathwiseDecomposition(correction=-1.0, expected=-0.5, residual=0.0)
    """
    nodes = partition("nodes", nodes, whole=False)
    if nodes[-1] > 1:
        raise LoopscopeError(f"nodes end at {nodes[-1]}: scales lie in [0, 1]")
    curvature = sampled("curvature", curvature, nodes)
    slope, gain = per_update(slope=slope, gain=gain)
    same_updates(slope=slope.shape, gain=gain.shape, curvature=curvature.shape[:-1])
    with quiet():
        correction = np.einsum("...j,j->...", curvature, quadrature_weights(nodes.tobytes()))
        expected = nodes[-1] * slope + correction
        residual = finite("the decomposition", gain - expected)
    return PathwiseDecomposition(plain(correction), plain(expected), plain(residual))


@lru_cache(maxsize=8)  # the same nodes for every question of a pass
def quadrature_weights(of_nodes: bytes) -> FloatArray:
    """Weights w with Σ_j f(t_j) w_j = ∫ (α - s) p(s) ds, p interpolating the four nodes around each cell."""
    nodes = np.frombuffer(of_nodes)
    points = min(STENCIL, nodes.size)
    weights = np.zeros((nodes.size, nodes.size - 1))
    powers = np.arange(points)
    for cell, width in enumerate(np.diff(nodes)):
        start = min(max(cell - (points - 2) // 2, 0), nodes.size - points)
        members = slice(start, start + points)
        local = (nodes[members] - nodes[cell]) / width
        left = (nodes[-1] - nodes[cell]) / width
        # ∫₀¹ (left - x) x^k dx for each power k of the local coordinate x = (s - t_cell) / width.
        moments = left / (powers + 1) - 1 / (powers + 2)
        weights[members, cell] = width**2 * np.linalg.solve(np.vander(local, increasing=True).T, moments)
    total: FloatArray = weights.sum(axis=1)
    total.setflags(write=False)
    return total
