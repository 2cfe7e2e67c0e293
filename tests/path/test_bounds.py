from __future__ import annotations

import numpy as np
import pytest

from loopscope.path import (
    combined_regret_bound,
    curvature_deviation,
    deviation_at,
    diameter_bound,
    endpoint_bound,
    endpoint_prediction,
    pointwise_scale_bound,
    predicted_scale,
    regret_bound,
    residual_envelope,
    scale_bound,
    taylor_deviation_bound,
    taylor_regret_bound,
    taylor_scale_bound,
    taylor_value_bound,
    uniform_grid,
)

HUGE = 1.7e308


@pytest.fixture(params=[5, 65])
def deviation(request, paths):
    """The upper partition sum of each path on a coarse and on a fine partition."""
    nodes = uniform_grid(request.param)
    return curvature_deviation(nodes, paths.on(nodes, 2), paths.cell_constants(nodes)).upper


def test_the_endpoint_is_covered_on_every_path(paths, deviation, rounding):
    found = endpoint_bound(paths.slope, paths.quadratic, deviation)
    size = rounding * (1 + paths.bound_of(2))
    assert (found.lower - size <= paths.gain).all()
    assert (paths.gain <= found.upper + size).all()


def test_guaranteed_signs_are_the_signs_of_the_gain(paths, deviation):
    found = endpoint_bound(paths.slope, paths.quadratic, deviation)
    sure = found.sign != 0
    assert sure.any()
    assert (found.sign[sure] == np.sign(paths.gain[sure])).all()
    assert (np.abs(endpoint_prediction(paths.slope, paths.quadratic)) <= deviation)[~sure].all()


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


def test_the_pointwise_bound_covers_and_is_the_smallest(paths):
    best, _ = paths.maximisers
    falling = paths.quadratic < 0
    predicted = predicted_scale(paths.slope, paths.quadratic)
    pointwise = pointwise_scale_bound(best, paths.at(best, 1), paths.slope, paths.quadratic)
    assert (np.abs(predicted - best) <= pointwise + 1e-9)[falling].all()
    nodes = uniform_grid(129)
    upper = deviation_at(best, nodes, paths.on(nodes, 2), paths.cell_constants(nodes)).upper
    assert (pointwise <= scale_bound(upper, paths.quadratic, capped=False) * (1 + 1e-9) + 1e-9)[falling].all()


def test_maximisers_lie_within_the_diameter():
    """φ = -(a - 1/2)⁴ + b(a - 1/2)² has two equal maxima at 1/2 ± √(b/2), and φ''(0) = -3 + 2b < 0."""
    nodes = np.linspace(0, 1, 1025)
    for b in (0.02, 0.1, 0.3):
        curvature = -12 * (nodes - 0.5) ** 2 + 2 * b
        deviation = curvature_deviation(nodes, curvature, 12.0).upper
        quadratic = 0.5 * curvature[0]
        assert 2 * np.sqrt(b / 2) <= diameter_bound(deviation, quadratic)


def test_zero_deviation_makes_every_prediction_exact():
    assert endpoint_bound(0.5, -1.0, 0.0) == (-0.5, -0.5, -1)
    assert scale_bound(0.0, -1.0) == 0.0
    assert regret_bound(0.0, -1.0) == 0.0
    assert diameter_bound(0.0, -1.0) == 0.0
    assert regret_bound(0.0, 1.0) == 0.0
    assert regret_bound(0.0, 0.0) == 0.0
    assert regret_bound(0.0, 0.0, refined=False) == 0.0


@pytest.mark.parametrize("eta", [1e-12, 1e-3, 1.0])
@pytest.mark.parametrize("Q", [0.0, 0.25, 4.0])
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
    assert diameter_bound(deviation, Q) == 1.0
    assert scale_bound(deviation, Q, capped=False) == np.inf
    assert pointwise_scale_bound(1.0, Q + 3 * eta, -Q, Q) == np.inf
    assert eta <= regret_bound(deviation, Q) == regret_bound(deviation, Q, refined=False) == deviation


def test_the_endpoint_bound_is_an_interval_around_the_prediction():
    found = endpoint_bound([0.5, -2.0, 0.5, 0.5], [-1.0, 1.0, 0.5, -0.5], [0.25, 2.0, 1.0, 0.0])
    assert found.lower.tolist() == [-0.75, -3.0, 0.0, 0.0]
    assert found.upper.tolist() == [-0.25, 1.0, 2.0, 0.0]
    assert found.sign.tolist() == [-1, 0, 0, 0]
    assert found.sign.dtype == np.int8
    assert endpoint_bound(1.0, 0.5, 1.4).sign == 1


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


def test_the_refined_bound_is_continuous_and_never_larger():
    deviation = np.linspace(0, 5, 501)
    refined = regret_bound(deviation, -1.0)
    assert (refined <= regret_bound(deviation, -1.0, refined=False) + 1e-15).all()
    assert np.abs(np.diff(refined)).max() < 0.011
    assert regret_bound(1.0, -1e-300) == pytest.approx(regret_bound(1.0, 0.0))


def test_the_diameter_is_twice_the_scale_bound():
    assert diameter_bound(0.25, -0.5) == 0.5
    assert diameter_bound([0.25, 1.0], -0.5).tolist() == [0.5, 1.0]
    assert diameter_bound(0.1, 0.5) == 1.0


def test_the_pointwise_bound_uses_the_residual_at_the_maximiser():
    assert pointwise_scale_bound(0.5, 0.0, 1.0, -0.5) == 0.5
    assert pointwise_scale_bound(1.0, 0.25, 1.0, -0.25) == 0.5
    assert pointwise_scale_bound([0.0, 0.5], 0.0, 1.0, -1.0).tolist() == [0.5, 0.0]


def test_extreme_coefficients_keep_their_bounds():
    with np.errstate(all="raise"):
        assert scale_bound(HUGE, -HUGE) == 0.5
        assert scale_bound(5e-324, -5e-324, capped=False) == 0.5
        assert scale_bound(HUGE, -5e-324, capped=False) == np.inf
        assert regret_bound(HUGE, -HUGE) == pytest.approx(0.25 * HUGE)
        assert regret_bound(HUGE, -5e-324) == HUGE
        assert diameter_bound(HUGE, -5e-324) == 1.0


def test_negative_deviations_are_refused(refuses):
    line = "deviation is negative: it bounds a magnitude, give zero or more"
    for function in (scale_bound, regret_bound, diameter_bound):
        with refuses(line):
            function(-1.0, -1.0)
    with refuses(line):
        endpoint_bound(1.0, 1.0, -1.0)


def test_bad_arguments_are_refused_by_name(refuses):
    bad = "is NaN or infinite: leave such updates out"
    for function in (scale_bound, regret_bound, diameter_bound):
        with refuses(f"deviation {bad}"):
            function(np.nan, -1.0)
        with refuses(f"quadratic {bad}"):
            function(1.0, np.nan)
    for position, name in enumerate(("slope", "quadratic", "deviation")):
        arguments = [1.0, 1.0, 1.0]
        arguments[position] = np.nan
        with refuses(f"{name} {bad}"):
            endpoint_bound(*arguments)
    for position, name in enumerate(("alpha", "slope_at_alpha", "slope", "quadratic")):
        arguments = [1.0, 1.0, 1.0, 1.0]
        arguments[position] = np.inf
        with refuses(f"{name} {bad}"):
            pointwise_scale_bound(*arguments)
    with refuses("alpha lies outside [0, 1]: scales are fractions of the update"):
        pointwise_scale_bound(1.5, 0.0, 0.0, -1.0)
    with refuses("the residual exceeds float64: rescale the utility"):
        pointwise_scale_bound(1.0, HUGE, -HUGE, -1.0)
    with refuses("A + Q - deviation exceeds float64: rescale the utility"):
        endpoint_bound(-HUGE, 0.0, HUGE)
    with refuses("A + Q + deviation exceeds float64: rescale the utility"):
        endpoint_bound(HUGE, 0.0, HUGE)


@pytest.mark.parametrize("scale", [0.25, 1.0])
def test_the_quadratic_model_is_off_by_no_more_than_the_third_derivative_allows(paths, rounding, scale):
    M = paths.bound_of(3)
    model = paths.slope * scale + paths.quadratic * scale**2
    slack = rounding * (1 + paths.bound_of(2))
    assert (np.abs(paths.at(scale) - model) <= taylor_value_bound(M, scale) + slack).all()


def test_the_bound_of_the_quadratic_model_is_what_a_cubic_path_reaches():
    A, Q, c = 0.3, -0.5, np.array([0.2, -0.7])
    for scale in (0.25, 0.5, 1.0):
        path = A * scale + Q * scale**2 + c * scale**3
        off = np.abs(path - (A * scale + Q * scale**2))
        assert taylor_value_bound(6 * np.abs(c), scale) == pytest.approx(off)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_the_deviation_is_covered_on_every_path(paths, rounding, alpha):
    scales = np.full(paths.count, alpha)
    true_lower, _ = paths.deviation(scales)
    M = paths.bound_of(3)
    assert (true_lower <= taylor_deviation_bound(M, scales) + rounding * (1 + M)).all()


def test_third_derivative_the_scale_error_is_covered_on_every_path(paths):
    best, _ = paths.maximisers
    M = paths.bound_of(3)
    error = np.abs(predicted_scale(paths.slope, paths.quadratic) - best)
    for known in (best, 1.0):
        assert (error <= taylor_scale_bound(M, paths.quadratic, known) + 1e-9).all()


def test_third_derivative_the_regret_is_covered_on_every_path(paths, rounding):
    best, value = paths.maximisers
    M = paths.bound_of(3)
    predicted = predicted_scale(paths.slope, paths.quadratic)
    regret = value - paths.at(predicted)
    slack = rounding * (1 + paths.bound_of(2))
    assert (regret <= taylor_regret_bound(M, best, predicted) + slack).all()
    assert (regret <= taylor_regret_bound(M) + slack).all()
    nodes = uniform_grid(65)
    deviation = curvature_deviation(nodes, paths.on(nodes, 2), paths.cell_constants(nodes)).upper
    for arguments in ((), (deviation,), (deviation, best, predicted)):
        assert (regret <= combined_regret_bound(M, paths.quadratic, *arguments) + slack).all()


def test_the_formulas_are_those_of_the_paper():
    assert taylor_deviation_bound(3.0) == 1.5
    assert taylor_deviation_bound(8.0, 0.5) == 1.0
    assert taylor_deviation_bound([8.0, 4.0], [0.5, 1.0]).tolist() == [1.0, 2.0]
    assert taylor_scale_bound(1.0, -1.0) == 0.25
    assert taylor_scale_bound(1.0, -1.0, 0.5) == 0.0625
    assert taylor_scale_bound(100.0, -1.0) == 1.0
    assert taylor_scale_bound(100.0, -1.0, capped=False) == 25.0
    assert taylor_scale_bound(1.0, 1.0) == 1.0
    assert taylor_scale_bound(1.0, 1.0, capped=False) == np.inf
    assert taylor_regret_bound(3.0) == 1.0
    assert taylor_regret_bound(6.0, 0.5) == 1.125
    assert taylor_regret_bound(6.0, 0.5, 0.0) == 0.125
    assert taylor_regret_bound(6.0, predicted=0.5) == 1.125


def test_the_combined_bound_takes_the_better_one():
    """M²/(8κ) for small M against κ, M/3 for nearly flat q; a given deviation replaces M/2."""
    assert combined_regret_bound(0.5, -1.0) == 0.25 / 16
    assert combined_regret_bound(3.0, -1e-3) == 1.0
    assert combined_regret_bound(0.5, -1.0, 0.125) == 0.125**2 / 4
    assert combined_regret_bound(3.0, 5.0, 0.125) == 0.125
    assert combined_regret_bound(3.0, 5.0) == 1.0
    assert combined_regret_bound(6.0, -1.0, 100.0, 0.5, 0.0) == 0.125
    assert combined_regret_bound(6.0, -1.0, 100.0, 0.0, 0.5) == 0.125
    assert combined_regret_bound(6.0, -1.0, None, 0.5, 0.0) == 0.125
    assert combined_regret_bound([0.5, 6.0], -1.0, alpha=[1.0, 0.5], predicted=0.0).tolist() == [1 / 64, 0.125]


def test_the_global_bound_is_never_better_than_the_partition_sum(paths):
    nodes = np.linspace(0, 1, 513)
    deviation = curvature_deviation(nodes, paths.on(nodes, 2), paths.cell_constants(nodes)).upper
    M = paths.bound_of(3)
    assert (deviation <= taylor_deviation_bound(M) * (1 + 1e-12) + (M + paths.fourth / 512) / 512).all()


def test_bad_arguments_are_refused(refuses):
    negative = "M is negative: it bounds a magnitude, give zero or more"
    with refuses(negative):
        taylor_deviation_bound(-1.0)
    with refuses(negative):
        taylor_regret_bound(-1.0)
    with refuses(negative):
        taylor_scale_bound(-1.0, -1.0)
    with refuses(negative):
        combined_regret_bound(-1.0, -1.0)
    with refuses("alpha lies outside [0, 1]: scales are fractions of the update"):
        taylor_deviation_bound(1.0, 1.5)
    with refuses("alpha lies outside [0, 1]: scales are fractions of the update"):
        taylor_regret_bound(1.0, 1.5)
    with refuses("predicted lies outside [0, 1]: scales are fractions of the update"):
        taylor_regret_bound(1.0, 1.0, 1.5)
    with refuses("deviation is negative: it bounds a magnitude, give zero or more"):
        combined_regret_bound(1.0, -1.0, -1.0)
    with refuses("M is NaN or infinite: leave such updates out"):
        taylor_deviation_bound(np.nan)
    with refuses("alpha is NaN or infinite: leave such updates out"):
        taylor_deviation_bound(1.0, np.nan)
    with refuses("M is NaN or infinite: leave such updates out"):
        taylor_regret_bound(np.nan)
    with refuses("alpha is NaN or infinite: leave such updates out"):
        taylor_regret_bound(1.0, np.nan)
    with refuses("predicted is NaN or infinite: leave such updates out"):
        taylor_regret_bound(1.0, 1.0, np.nan)
    names = {"M": 1.0, "quadratic": -1.0, "alpha": 1.0}
    for name in names:
        with refuses(f"{name} is NaN or infinite: leave such updates out"):
            taylor_scale_bound(**{**names, name: np.nan})
    names["predicted"] = 1.0
    for name in names:
        with refuses(f"{name} is NaN or infinite: leave such updates out"):
            combined_regret_bound(**{**names, name: np.nan})
    with refuses("shapes differ (taylor (2,), deviation (3,)): give one entry per update in each"):
        combined_regret_bound([1.0, 1.0], -1.0, [1.0, 1.0, 1.0])


def test_the_envelope_is_that_of_the_equation():
    """e = 0, 1/4, -1/2 at 0, 1/2, 1 with q' = 1 - a; the constants add L h²/8 = 1/32 and 1/16."""
    nodes, slopes = [0.0, 0.5, 1.0], [1.0, 0.75, -0.5]
    assert residual_envelope(nodes, slopes, -0.5, [1.0, 2.0]) == 0.5 + 1 / 16
    assert residual_envelope(nodes, slopes, -0.5, [9.0, 0.0]) == 0.25 + 9 / 32
    assert residual_envelope(nodes, slopes, -0.5, 0.0) == 0.5


def test_the_larger_end_of_each_cell_counts():
    """e = 0, 1, 0 at 0, 1/2, 1: the steep second cell has its larger end on the left."""
    assert residual_envelope([0.0, 0.5, 1.0], [0.0, 1.0, 0.0], 0.0, [0.0, 32.0]) == 2.0
    assert residual_envelope([0.0, 0.5, 1.0], [0.0, 1.0, 0.0], 0.0, [32.0, 0.0]) == 2.0


def test_the_upper_deviation_caps_the_envelope():
    nodes, slopes = [0.0, 0.5, 1.0], [1.0, 0.75, -0.5]
    assert residual_envelope(nodes, slopes, -0.5, 1.0, deviation=0.25) == 0.25
    assert residual_envelope(nodes, slopes, -0.5, 0.0, deviation=0.75) == 0.5
    found = residual_envelope(nodes, slopes, [-0.5, -0.5], 0.0, deviation=[0.25, 0.75])
    assert found.tolist() == [0.25, 0.5]


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


def test_the_signed_bounds_cover_scale_error_and_regret(paths, rounding):
    nodes = uniform_grid(65)
    constants = paths.cell_constants(nodes)
    deviation = curvature_deviation(nodes, paths.on(nodes, 2), constants).upper
    envelope = residual_envelope(nodes, paths.on(nodes, 1), paths.quadratic, constants, deviation)
    best, value = paths.maximisers
    predicted = predicted_scale(paths.slope, paths.quadratic)
    falling = paths.quadratic < 0
    assert (np.abs(predicted - best) <= scale_bound(envelope, paths.quadratic) + 1e-9)[falling].all()
    size = 1 + paths.bound_of(2)
    assert (value - paths.at(predicted) <= regret_bound(envelope, paths.quadratic) + rounding * size).all()


def test_cancelling_deviations_make_the_envelope_smaller():
    """φ'' - φ''(0) = sin(2πa)·2π has deviation 4, but the slope residual 1 - cos(2πa) never exceeds 2."""
    nodes = np.linspace(0, 1, 513)
    curvature = -20 + 2 * np.pi * np.sin(2 * np.pi * nodes)
    slopes = 3 - 20 * nodes + 1 - np.cos(2 * np.pi * nodes)
    deviation = curvature_deviation(nodes, curvature, 4 * np.pi**2).upper
    assert 4 < deviation < 4.1
    assert 2 <= residual_envelope(nodes, slopes, -10.0, 4 * np.pi**2, deviation) < 2.001


def test_blocks_of_updates_do_not_show():
    rng = np.random.default_rng(0)
    slopes, quadratic = rng.normal(size=(10_000, 3)), rng.normal(size=10_000)
    constants = rng.uniform(0, 1, (10_000, 2))
    found = residual_envelope([0.0, 0.5, 1.0], slopes, quadratic, constants)
    for row in (0, 4095, 4096, 9999):
        one = residual_envelope([0.0, 0.5, 1.0], slopes[row], quadratic[row], constants[row])
        assert found[row] == one
        assert type(one) is float


def test_many_axes_of_updates_are_kept():
    slopes = np.random.default_rng(0).normal(size=(2, 3, 5))
    found = residual_envelope(uniform_grid(5), slopes, 0.0, 1.0)
    assert found.shape == (2, 3)
    assert found[1, 2] == residual_envelope(uniform_grid(5), slopes[1, 2], 0.0, 1.0)
    assert residual_envelope(uniform_grid(5), slopes[0, 0], 0.0, np.ones((7, 4))).shape == (7,)
    assert residual_envelope(uniform_grid(5), slopes, np.zeros((2, 3)), np.ones((2, 3, 4))).shape == (2, 3)


def test_a_quadratic_path_has_no_residual():
    nodes = uniform_grid()
    assert residual_envelope(nodes, 2 - 6 * nodes, -3.0, 0.0) < 1e-15


def test_residual_bad_arguments_are_refused(refuses):
    nodes, flat = [0.0, 1.0], [0.0, 0.0]
    with refuses("nodes ends at 0.5: it must contain 1, the full update"):
        residual_envelope([0.0, 0.5], flat, 0.0, 0.0)
    with refuses("slopes has shape (3,) for 2 scales: give one entry per scale on the last axis"):
        residual_envelope(nodes, [0.0, 0.0, 0.0], 0.0, 0.0)
    with refuses("quadratic is NaN or infinite: leave such updates out"):
        residual_envelope(nodes, flat, np.nan, 0.0)
    with refuses("lipschitz is negative: it bounds a magnitude, give zero or more"):
        residual_envelope(nodes, flat, 0.0, -1.0)
    with refuses("deviation is negative: it bounds a magnitude, give zero or more"):
        residual_envelope(nodes, flat, 0.0, 0.0, deviation=-1.0)
    with refuses("deviation is NaN or infinite: leave such updates out"):
        residual_envelope(nodes, flat, 0.0, 0.0, deviation=np.nan)
    with refuses("numbers of updates differ (slopes (2,), quadratic (3,)): give the same updates in each"):
        residual_envelope(nodes, np.zeros((2, 2)), np.zeros(3), 0.0)
    with refuses("numbers of updates differ (slopes (2,), lipschitz (3,)): give the same updates in each"):
        residual_envelope(nodes, np.zeros((2, 2)), 0.0, np.zeros((3, 1)))
    with refuses("numbers of updates differ (slopes (2,), deviation (3,)): give the same updates in each"):
        residual_envelope(nodes, np.zeros((2, 2)), 0.0, 0.0, np.zeros(3))
    with refuses("the residual exceeds float64: rescale the utility"):
        residual_envelope(nodes, [0.0, -1.7e308], 1.7e308, 0.0)
