import numpy as np
import pytest

from loopscope.path import (
    curvature_deviation,
    deviation_at,
    diameter_bound,
    endpoint_bound,
    endpoint_prediction,
    pointwise_scale_bound,
    predicted_scale,
    regret_bound,
    scale_bound,
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
