import numpy as np
import pytest

from loopscope.path import concave_optimum, predicted_scale, refine_bracket, regret_interval, scale_error_interval


def test_each_end_can_be_the_narrowest():
    # From the left end: [1/4, 1/2]; from the right end: [1 - 1/2, 1 - 1/4].
    assert refine_bracket(0.0, 1.0, 1.0, -1.0, mu=2.0, nu=4.0) == (0.5, 0.5)
    assert refine_bracket(0.0, 1.0, 1.0, -1.0, mu=1.0, nu=4.0) == (0.25, 0.75)
    assert refine_bracket(0.0, 1.0, 1.0, -3.0, mu=2.0, nu=8.0) == (0.125, 0.5)
    assert refine_bracket(0.0, 1.0, 1.0, 0.0, mu=0.5, nu=2.0) == (1.0, 1.0)
    assert refine_bracket(0.0, 1.0, 3.0, -1.0, mu=2.0, nu=8.0) == (0.5, 0.875)


def test_the_bracket_itself_still_counts():
    assert refine_bracket(0.25, 0.5, 1e-3, -1e-3, mu=1e-9, nu=1e9) == pytest.approx((0.25, 0.5), abs=1e-9)


def test_brackets_hold_the_optimum_of_concave_paths(concave_paths):
    best, _ = concave_paths.maximisers
    lowest, highest = concave_paths.extremes_of_curvature()
    usable = (highest < 0) & (best > 0) & (best < 1)
    lower, upper = np.maximum(best - 0.07, 0.0), np.minimum(best + 0.05, 1.0)
    at_lower, at_upper = concave_paths.at(lower, 1), concave_paths.at(upper, 1)
    usable &= (at_lower > 0) & (at_upper <= 0)
    assert usable.sum() > 5
    found = refine_bracket(
        *(array[usable] for array in (lower, upper, at_lower, at_upper)), -highest[usable], -lowest[usable]
    )
    assert (found.lower <= best[usable] + 1e-11).all()
    assert (best[usable] <= found.upper + 1e-11).all()
    assert (found.upper - found.lower <= (upper - lower)[usable]).all()
    assert (found.upper - found.lower < 0.9 * (upper - lower)[usable]).any()


def test_rounding_may_cross_the_ends_but_never_empties_the_bracket():
    slope = 0.1 + 0.2
    found = refine_bracket(0.0, 1.0, slope, slope - 3.0, mu=3.0, nu=3.0)
    assert found.lower <= found.upper
    assert found == pytest.approx((0.1, 0.1), abs=1e-15)


def test_contradicting_bounds_are_refused(refuses):
    line = "no zero of φ' fits both the slopes and the curvature bounds: mu and nu must hold on the whole bracket"
    with refuses(line):
        refine_bracket(0.0, 1.0, 1.0, -1.0, mu=2.0 + 1e-9, nu=3.0)
    with refuses(line):
        refine_bracket(0.0, 1.0, 1.0, -1.0, mu=1.0, nu=2.0 - 1e-9)


def test_many_brackets_are_refined_at_once():
    found = refine_bracket([0.0, 0.0], 1.0, [1.0, 1.0], [-1.0, -3.0], mu=[1.0, 2.0], nu=[4.0, 8.0])
    assert found.lower.tolist() == [0.25, 0.125]
    assert found.upper.tolist() == [0.75, 0.5]


def test_bad_brackets_are_refused(refuses):
    good = {"lower": 0.0, "upper": 1.0, "slope_lower": 1.0, "slope_upper": -1.0, "mu": 1.0, "nu": 4.0}
    for change, line in (
        ({"lower": 0.5, "upper": 0.5}, "lower does not lie below upper: give an interior bracket"),
        ({"slope_lower": 0.0}, "slope_lower is not positive: the path must rise at the lower end"),
        ({"slope_upper": 1e-9}, "slope_upper is positive: the path must not rise at the upper end"),
        ({"mu": 0.0}, "mu is not positive: the refinement needs curvature that stays below zero"),
        ({"mu": 5.0}, "mu exceeds nu: mu bounds -φ'' from below and nu from above"),
        ({"lower": -0.1}, "lower lies outside [0, 1]: scales are fractions of the update"),
        ({"upper": 1.1}, "upper lies outside [0, 1]: scales are fractions of the update"),
        *(({name: np.nan}, f"{name} is NaN or infinite: leave such updates out") for name in good),
    ):
        with refuses(line):
            refine_bracket(**{**good, **change})


@pytest.mark.parametrize(
    ("predicted", "expected"),
    [(0.0, (0.25, 0.5)), (1.0, (0.5, 0.75)), (0.375, (0.0, 0.125)), (0.25, (0.0, 0.25)), (0.3125, (0.0, 0.1875))],
)
def test_scale_errors_over_a_bracket(predicted, expected):
    assert scale_error_interval(predicted, 0.25, 0.5) == expected


def test_scale_errors_of_many_brackets():
    found = scale_error_interval([0.0, 1.0], [0.25, 0.25], 0.5)
    assert found.lower.tolist() == [0.25, 0.5]
    assert found.upper.tolist() == [0.5, 0.75]
    assert scale_error_interval(0.25, 0.25, 0.25) == (0.0, 0.0)


def test_regret_over_a_bracket():
    # φ(l) = 1, φ(u) = 1/2; tangents allow 1 + 1/4 from the left and 1/2 + 1/2 from the right.
    assert regret_interval(0.75, 0.0, 0.5, 1.0, 0.5, 0.5, -2.0) == (0.25, 0.5)
    assert regret_interval(0.75, 0.0, 0.5, 1.0, 0.5, 2.0, -1.25) == (0.25, 0.375)
    assert regret_interval(0.5, 0.0, 0.5, 0.5, 1.0, 2.0, -1.0) == (0.5, 1.0)


def test_regret_uses_the_width_of_the_bracket():
    assert regret_interval(0.0, 0.25, 0.75, 0.5, 1.0, 2.0, -0.5) == (1.0, 1.25)
    assert regret_interval(0.0, 0.25, 0.75, 1.0, 0.5, 0.5, -2.0) == (1.0, 1.25)


def test_regret_at_an_endpoint_is_exact():
    assert regret_interval(0.25, 1.0, 1.0, 0.5, 0.5, 3.0, 3.0) == (0.25, 0.25)
    assert regret_interval(0.0, 0.0, 0.0, 0.0, 0.0, -3.0, -3.0) == (0.0, 0.0)


def test_rounding_never_makes_regret_negative_or_inverted():
    assert regret_interval(1.0, 0.0, 0.5, 1.0 - 1e-16, 1.0 - 1e-15, 0.0, 0.0) == (0.0, 0.0)
    found = regret_interval(0.0, 0.0, 0.5, 1.0, 0.5, 0.0, 0.0)
    assert found == (1.0, 1.0)


def test_slopes_of_the_wrong_sign_do_not_lower_the_ceiling():
    assert regret_interval(0.0, 0.0, 0.5, 1.0, 1.0, -8.0, 8.0) == (1.0, 1.0)


def test_intervals_of_concave_paths_cover_the_truth(concave_paths, rounding):
    best, value = concave_paths.maximisers
    predicted = predicted_scale(concave_paths.slope, concave_paths.quadratic)
    for tolerance in (1e-4, 0.05):
        found = concave_optimum(concave_paths.function(1), concave_paths.count, tolerance=tolerance)
        scale = scale_error_interval(predicted, found.lower, found.upper)
        regret = regret_interval(
            concave_paths.at(predicted),
            found.lower,
            found.upper,
            concave_paths.at(found.lower),
            concave_paths.at(found.upper),
            found.slope_lower,
            found.slope_upper,
        )
        error = np.abs(predicted - best)
        assert ((scale.lower - 1e-9 <= error) & (error <= scale.upper + 1e-9)).all()
        true = value - concave_paths.at(predicted)
        assert ((regret.lower - rounding <= true) & (true <= regret.upper + rounding)).all()


def test_bad_intervals_are_refused(refuses):
    with refuses("lower exceeds upper: give a bracket"):
        scale_error_interval(0.5, 0.6, 0.5)
    with refuses("lower exceeds upper: give a bracket"):
        regret_interval(0.0, 0.6, 0.5, 0.0, 0.0, 0.0, 0.0)
    for position, name in enumerate(("predicted", "lower", "upper")):
        arguments = [0.5, 0.5, 0.5]
        arguments[position] = np.nan
        with refuses(f"{name} is NaN or infinite: leave such updates out"):
            scale_error_interval(*arguments)
    names = ("predicted_value", "lower", "upper", "value_lower", "value_upper", "slope_lower", "slope_upper")
    for position, name in enumerate(names):
        arguments = [0.5] * 7
        arguments[position] = np.nan
        with refuses(f"{name} is NaN or infinite: leave such updates out"):
            regret_interval(*arguments)
    with refuses("the regret exceeds float64: rescale the utility"):
        regret_interval(-1.7e308, 0.0, 0.5, 1.7e308, 0.0, 0.0, 0.0)
    with refuses("the regret exceeds float64: rescale the utility"):
        regret_interval(0.0, 0.0, 1.0, 1.7e308, 1.7e308, 1.7e308, -1.7e308)
