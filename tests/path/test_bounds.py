from __future__ import annotations

from itertools import product

import mpmath
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.integrate import quad

from loopscope.path import (
    beneficial_lower_bound,
    beneficial_range,
    curvature_deviation,
    paper_envelope,
    pathwise_decomposition,
    predicted_scale,
    regret_bound,
    residual_envelope,
    safe_scale,
    scale_bound,
    taylor_scale_bound,
    taylor_value_bound,
    uniform_grid,
)
from loopscope.path.bounds import SAFE_FRACTION
from loopscope.readout.affine.path import affine_path

HUGE = 1.7e308


@pytest.fixture(params=[(5, False), (65, False), (65, True)], ids=["coarse", "fine", "signed"])
def deviation(request, paths):
    """The upper partition sum of each path on a coarse and on a fine partition, and its signed envelope."""
    count, signed = request.param
    nodes = uniform_grid(count)
    constants = paths.cell_constants(nodes)
    upper = curvature_deviation(nodes, paths.on(nodes, 2), constants).upper
    return residual_envelope(nodes, paths.on(nodes, 1), paths.quadratic, constants, upper) if signed else upper


def test_the_scale_error_is_covered_on_every_path(paths, deviation):
    best, _ = paths.maximisers
    predicted = predicted_scale(paths.slope, paths.quadratic)
    assert (np.abs(predicted - best) <= scale_bound(deviation, paths.quadratic) + 1e-9).all()


def test_the_regret_is_covered_on_every_path(paths, deviation, rounding):
    _, value = paths.maximisers
    regret = value - paths.at(predicted_scale(paths.slope, paths.quadratic))
    size = rounding * (1 + paths.bound_of(2))
    assert (regret >= -size).all()
    for refined in (True, False):
        assert (regret <= regret_bound(deviation, paths.quadratic, refined=refined) + size).all()


@pytest.mark.parametrize(("eta", "Q"), [(1e-12, 0.0), (1e-3, 0.25), (1.0, 4.0)])
def test_the_location_is_unstable_for_nonnegative_curvature(eta, Q):
    """φ = Qa(a - 1) + ηa³: α̂ = 0 and α* = 1 whatever η > 0, and the bounds say no more than they can."""
    a = np.linspace(0, 1, 1001)
    phi = Q * a * (a - 1) + eta * a**3
    assert a[phi.argmax()] == 1.0
    assert predicted_scale(-Q, Q) == 0.0
    nodes = uniform_grid(129)
    deviation = curvature_deviation(nodes, 2 * Q + 6 * eta * nodes, 6 * eta).upper
    assert 3 * eta <= deviation <= 3.1 * eta
    assert scale_bound(deviation, Q) == 1.0
    assert scale_bound(deviation, Q, capped=False) == np.inf
    assert eta <= regret_bound(deviation, Q) == regret_bound(deviation, Q, refined=False) == deviation


def test_the_scale_bound_is_deviation_over_kappa_and_at_most_one():
    assert scale_bound(0.25, -0.5) == 0.25
    assert scale_bound(3.0, -1.0) == 1.0
    assert scale_bound(3.0, -1.0, capped=False) == 1.5
    assert scale_bound([0.5, 1.0], -1.0).tolist() == [0.25, 0.5]
    assert scale_bound(1.0, [-1.0, -2.0, 0.0]).tolist() == [0.5, 0.25, 1.0]


def test_the_regret_bound_turns_linear_where_the_domain_ends():
    assert regret_bound(0.5, -1.0) == 0.0625
    assert regret_bound(2.0, -1.0) == 1.0
    assert regret_bound(3.0, -1.0) == 2.0
    assert regret_bound(3.0, -1.0, refined=False) == 2.25
    assert regret_bound([1.0, 3.0, 3.0], [-1.0, -1.0, 2.0]).tolist() == [0.25, 2.0, 3.0]
    assert regret_bound(2.0, [-1.0, -0.5]).tolist() == [1.0, 1.5]


def test_extreme_coefficients_keep_their_bounds():
    with np.errstate(all="raise"):
        assert scale_bound(HUGE, -HUGE) == 0.5
        assert scale_bound(5e-324, -5e-324, capped=False) == 0.5
        assert scale_bound(HUGE, -5e-324, capped=False) == np.inf
        assert regret_bound(HUGE, -HUGE) == pytest.approx(0.25 * HUGE)
        assert regret_bound(HUGE, -5e-324) == HUGE


def test_the_quadratic_model_is_off_by_no_more_than_the_third_derivative_allows(paths, rounding):
    M, slack = paths.bound_of(3), rounding * (1 + paths.bound_of(2))
    for scale in (0.25, 1.0):
        model = paths.slope * scale + paths.quadratic * scale**2
        assert (np.abs(paths.at(scale) - model) <= taylor_value_bound(M, scale) + slack).all()


def test_third_derivative_the_scale_error_is_covered_on_every_path(paths):
    best, _ = paths.maximisers
    M = paths.bound_of(3)
    error = np.abs(predicted_scale(paths.slope, paths.quadratic) - best)
    for known in (best, 1.0):
        assert (error <= taylor_scale_bound(M, paths.quadratic, known) + 1e-9).all()


def test_the_envelope_is_that_of_the_equation():
    """e = 0, 1/4, -1/2 at 0, 1/2, 1 with q' = 1 - a; the constants add L h²/8 = 1/32 and 1/16."""
    nodes, slopes = [0.0, 0.5, 1.0], [1.0, 0.75, -0.5]
    assert residual_envelope(nodes, slopes, -0.5, [1.0, 2.0]) == pytest.approx(0.5 + 1 / 16, rel=1e-10)
    assert residual_envelope(nodes, slopes, -0.5, [9.0, 0.0]) == pytest.approx(0.25 + 9 / 32, rel=1e-10)
    assert residual_envelope(nodes, slopes, -0.5, 0.0) == pytest.approx(0.5, rel=1e-10)


def test_the_envelope_covers_the_residual_of_every_path(paths, rounding):
    dense = paths.dense
    residual = np.abs(paths.dense_samples(1) - paths.slope[:, None] - 2 * paths.quadratic[:, None] * dense)
    size = 1 + paths.bound_of(2)
    for count in (2, 6, 21):
        nodes = uniform_grid(count) ** 1.3
        constants = paths.cell_constants(nodes)
        deviation = curvature_deviation(nodes, paths.on(nodes, 2), constants).upper
        plain = residual_envelope(nodes, paths.on(nodes, 1), paths.quadratic, constants)
        capped = residual_envelope(nodes, paths.on(nodes, 1), paths.quadratic, constants, deviation)
        assert (residual.max(axis=1) <= plain + rounding * size).all()
        assert (residual.max(axis=1) <= capped + rounding * size).all()
        assert np.array_equal(capped, np.minimum(plain, deviation))


@pytest.mark.parametrize("step", [1e-3, 1e-5, 1e-6])
def test_the_envelope_covers_the_residual_of_small_displacements(step):
    """e = φ' − A − 2Qα is of the order of step³, the small difference of rounded slopes; the truth is mpmath's."""
    g = torch.Generator().manual_seed(7)
    z0, v = (torch.randn(12, 50, generator=g, dtype=torch.float64) for _ in range(2))
    cells, targets = 32, list(range(12))
    path = affine_path(z0, step * v, targets, examples=targets)
    envelope = path.envelope(cells)
    _, slopes, curvature, *_ = (derivative.numpy() for derivative in envelope.derivatives.stack)
    found = residual_envelope(envelope.nodes.numpy(), slopes, 0.5 * curvature[:, 0], envelope.third.numpy())
    with mpmath.workdps(50):
        for row in targets:
            z, d = ([mpmath.mpf(x) for x in tensor[row].tolist()] for tensor in (z0, step * v))

            def moments(alpha, z=z, d=d):
                w = [mpmath.exp(a + alpha * b) for a, b in zip(z, d, strict=True)]
                return [mpmath.fsum(a * b**k for a, b in zip(w, d, strict=True)) / mpmath.fsum(w) for k in (1, 2)]

            (mean, second), (mean_at_one, _) = moments(0), moments(1)
            assert abs(mean - mean_at_one + second - mean**2) <= found[row]


def test_the_lower_bound_covers_every_path(paths, rounding):
    lowest, _ = paths.extremes_of_curvature()
    L_D = np.maximum(-lowest, 0.0)
    scales = np.linspace(0, 1, 51)
    gains = paths.on(scales)
    for alpha, gain in zip(scales, gains.T, strict=True):
        bound = beneficial_lower_bound(np.full(paths.count, alpha), paths.slope, L_D)
        assert (gain >= bound - rounding * (1 + np.abs(bound))).all()


def test_the_range_ends_where_the_parabola_does():
    found = beneficial_range([0.25, 1.0, 0.5, 0.2, -1.0, 0.0], [1.0, 1.0, 1.0, 0.0, 1.0, 0.0])
    assert np.array_equal(found, [0.5, 1.0, 1.0, 1.0, np.nan, np.nan], equal_nan=True)


def test_every_scale_in_the_range_helps(paths):
    lowest, _ = paths.extremes_of_curvature()
    found = beneficial_range(paths.slope, np.maximum(-lowest, 0.0))
    helped = paths.slope > 0
    for share in (1e-3, 0.1, 0.5, 0.9, 0.999):
        scales = np.where(helped, share * found, 0.0)
        assert (paths.at(scales)[helped] > 0).all()
    assert (paths.gain[found == 1.0] >= 0).all()


def test_the_safe_scale_is_nine_tenths_of_the_range_and_at_most_one():
    assert SAFE_FRACTION == 0.9
    assert safe_scale(0.25, 1.0) == 0.9 * 0.5
    assert safe_scale(100.0, 1.0) == 1.0
    assert safe_scale(0.5, 0.0) == 1.0
    assert safe_scale(5.0 / 9, 1.0) == 1.0
    assert np.isnan(safe_scale(0.0, 1.0))
    assert np.isnan(safe_scale(-1.0, 0.0))
    assert safe_scale(0.25, 1.0, fraction=0.5) == 0.25
    assert safe_scale([0.25, 0.5], 2.0).tolist() == [0.225, 0.45]
    assert safe_scale(0.5, [2.0, 4.0]).tolist() == [0.45, 0.225]


def test_safe_scales_gain_at_least_their_bound(paths, rounding):
    lowest, _ = paths.extremes_of_curvature()
    helped = paths.slope > 0
    L_D = np.maximum(-lowest, 0.0)
    alpha = np.where(helped, safe_scale(paths.slope, L_D), 0.0)
    gains = paths.at(alpha)
    assert (gains[helped] > 0).all()
    assert (gains >= beneficial_lower_bound(alpha, paths.slope, L_D) - rounding).all()


def test_the_sums_are_those_of_the_proposition():
    """Cells of width 1/4 and 3/4 with |g| = 0, 1, 2: T = 1/8, 9/8 and P = L h²/4 = 1/16, 9/16."""
    found = curvature_deviation([0.0, 0.25, 1.0], [3.0, 4.0, 1.0], [4.0, 4.0])
    assert found == (1 / 16 + 9 / 16, 3 / 16 + 27 / 16)
    assert type(found.lower) is float


def test_the_sums_enclose_the_deviation_of_every_path(paths, rounding):
    true_lower, true_upper = paths.whole_deviation
    slack = rounding * (1 + paths.bound_of(2))
    for count in (2, 3, 21, 65):
        nodes = uniform_grid(count) ** 1.3
        found = curvature_deviation(nodes, paths.on(nodes, 2), paths.cell_constants(nodes))
        assert (found.lower <= true_upper + slack).all()
        assert (true_lower <= found.upper + slack).all()
        assert (found.lower <= found.upper).all()


CELLS, DENSE = 16, 33
Floats = NDArray[np.float64]


def derivatives(z: Floats, v: Floats, alpha: Floats) -> tuple[Floats, Floats]:
    """Mean over tokens of φ'' and φ''' of logits z + αv, written out: [scales]."""
    logits = z[None] + alpha[:, None, None] * v[None]
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    centred = v - (p * v).sum(-1, keepdims=True)
    return -(p * centred**2).sum(-1).mean(-1), -(p * centred**3).sum(-1).mean(-1)


def envelope_of(z: Floats, v: Floats, cells: int = CELLS):
    nodes = np.arange(cells + 1) / cells
    second, third = derivatives(z, v, nodes)
    spread = v.max(-1) - v.min(-1)
    moments = np.array([[np.mean(spread**power) for power in (2, 3, 4)]])
    return paper_envelope(nodes, second[None], third[None], moments)


@pytest.mark.parametrize("vocabulary", [2, 3, 50])
def test_bounds_hold_between_the_nodes(vocabulary: int) -> None:
    random = np.random.default_rng(vocabulary)
    for size, peak, _ in product((0.1, 3.0, 40.0), (0.5, 8.0), range(5)):
        z, v = (random.normal(size=(4, vocabulary)) * scale for scale in (peak, size))
        found = envelope_of(z, v)
        for cell in range(CELLS):
            second, third = derivatives(z, v, np.linspace(cell / CELLS, (cell + 1) / CELLS, DENSE))
            assert (-second).max() <= found.curvature_upper[0, cell]
            assert (-second).min() >= found.curvature_lower[0, cell]
            assert np.abs(third).max() <= found.third[0, cell]


@pytest.mark.parametrize("size", [0.3, 3.0])
def test_it_is_never_tighter_than_loopscopes(size: float) -> None:
    random = np.random.default_rng(3)
    z, v = random.normal(size=(6, 200)) * 2.0, random.normal(size=(6, 200)) * size
    targets = torch.arange(6)
    ours = affine_path(torch.tensor(z), torch.tensor(v), targets).envelope(256)
    moments = ours.range_moments.numpy()[None]
    spread = v.max(-1) - v.min(-1)
    np.testing.assert_allclose(moments[0], [np.mean(spread**power) for power in (2, 3, 4)], rtol=1e-12)
    second, third = (ours.derivatives.stack[order].numpy()[None] for order in (2, 3))
    paper = paper_envelope(ours.nodes.numpy(), second, third, moments)
    slack = 1 + 1e-9
    assert (ours.third.numpy() <= paper.third[0] * slack).all()
    assert (ours.curvature_upper.numpy() <= paper.curvature_upper[0] * slack).all()
    assert (ours.curvature_lower.numpy() * slack >= paper.curvature_lower[0]).all()
    assert float(ours.M) < 0.9 * paper.third.max()


@pytest.mark.parametrize("nodes", [[0.0, 0.2, 0.5, 0.9, 1.0], [0.0, 0.05, 0.1, 0.8], np.linspace(0, 0.7, 9)])
def test_cubic_curvature_is_integrated_exactly_up_to_any_scale(nodes):
    """φ = 3a + a² - 2a³ + a⁴ + 2a⁵, so φ'' is a cubic."""
    nodes = np.asarray(nodes)
    end = nodes[-1]
    curvature = 2 - 12 * nodes + 12 * nodes**2 + 40 * nodes**3
    gain = 3 * end + end**2 - 2 * end**3 + end**4 + 2 * end**5
    found = pathwise_decomposition(nodes, curvature, slope=3.0, gain=gain)
    assert found.correction == pytest.approx(gain - 3 * end, abs=1e-14)
    assert found.expected == pytest.approx(gain, abs=1e-14)
    assert abs(found.residual) < 1e-14


def test_the_integral_agrees_with_adaptive_quadrature(paths):
    nodes = np.linspace(0, 1, 257)
    found = pathwise_decomposition(nodes, paths.on(nodes, 2), paths.slope, paths.gain)
    for row in paths.rows[:20]:
        integrand = lambda s, row=row: (1 - s) * paths.evaluate(2, np.asarray(s), np.asarray(row))  # noqa: E731
        scale = 1 + paths.fourth[row]
        exact, error = quad(integrand, 0, 1, epsabs=1e-10 * scale, limit=200)
        assert abs(found.correction[row] - exact) <= error + 1e-9 * scale
