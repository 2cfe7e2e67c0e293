from __future__ import annotations

import numpy as np
import pytest

from loopscope.path import concave_optimum, predicted_scale, refine_bracket, regret_interval, scale_error_interval
from loopscope.path.brackets import (
    Brackets,
    allowed_rise,
    check_tolerance,
    crossing_estimate,
    ends_of,
    evaluate,
    refuse_rising,
    shrink,
)


def whole(function, count):
    rows = np.arange(count)
    return Brackets(
        rows,
        np.zeros(count),
        np.ones(count),
        np.asarray(function(np.zeros(count), rows)),
        np.asarray(function(np.ones(count), rows)),
    )


ROOTS = np.array([0.3, 1e-3, 0.999, 0.5, 1 / 3, 1e-9])
SHAPES = {
    "line": lambda a, rows: ROOTS[rows] - a,
    "cubic": lambda a, rows: ROOTS[rows] ** 3 - a**3,
    "step": lambda a, rows: np.where(a < ROOTS[rows], 1.0, -1.0),
    "steep": lambda a, rows: -np.expm1(40 * (a - ROOTS[rows])),
    "flat": lambda a, rows: (ROOTS[rows] - a) ** 9,
    "tiny": lambda a, rows: 1e-300 * (ROOTS[rows] - a),
    "huge": lambda a, rows: 1.7e308 * (ROOTS[rows] - a),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tolerance", [1e-12, 1e-3, 0.3])
def test_every_bracket_closes_on_its_root_in_the_promised_rounds(shape, tolerance):
    function = SHAPES[shape]
    found, spent = shrink("f", function, whole(function, ROOTS.size), tolerance, lambda f: f > 0)
    assert (found.upper - found.lower <= tolerance).all()
    # The ninth power underflows to zero around its root.
    reach = 1e-12 if shape != "flat" else 1e-33
    assert (found.lower <= ROOTS + reach).all()
    assert (found.upper + reach >= ROOTS).all()
    assert np.array_equal(found.at_lower, function(found.lower, found.rows))
    assert np.array_equal(found.at_upper, function(found.upper, found.rows))
    assert (found.at_lower > 0).all()
    assert (found.at_upper <= 0).all()
    assert (spent <= np.ceil(np.log2(1 / tolerance)) + 1).all()
    assert (spent >= 1).all()


def test_smooth_functions_close_quickly():
    roots = np.linspace(0.01, 0.99, 99)
    function = lambda a, rows: np.exp(-a) - np.exp(-roots[rows])  # noqa: E731
    _, spent = shrink("f", function, whole(function, roots.size), 1e-12, lambda f: f > 0)
    assert spent.mean() <= 16


def test_only_open_brackets_are_evaluated():
    seen = []

    def function(alpha, rows):
        seen.append(rows.copy())
        return 0.5 - alpha

    start = Brackets(
        np.array([4, 7]), np.array([0.5, 0.0]), np.array([0.5, 1.0]), np.array([0.0, 0.5]), np.array([0.0, -0.5])
    )
    found, spent = shrink("f", function, start, 1e-6, lambda f: f > 0)
    assert all(rows.tolist() == [7] for rows in seen)
    assert spent.tolist() == [0, len(seen)]
    assert (found.lower[0], found.upper[0]) == (0.5, 0.5)
    assert found.rows.tolist() == [4, 7]


def test_the_starting_bracket_is_left_alone():
    start = whole(SHAPES["cubic"], ROOTS.size)
    shrink("f", SHAPES["cubic"], start, 1e-6, lambda f: f > 0)
    assert (start.lower == 0).all()
    assert (start.upper == 1).all()


@pytest.mark.parametrize(("above", "end"), [(lambda f: f > 0, 0.25), (lambda f: f >= 0, 0.75)], ids=["first", "last"])
def test_a_stretch_of_zeros_is_closed_on_from_the_side_that_counts(above, end):
    function = lambda a, rows: np.where(a < 0.25, 0.25 - a, np.where(a > 0.75, 0.75 - a, 0.0))  # noqa: E731
    found, _ = shrink("f", function, whole(function, 1), 1e-12, above)
    assert found.lower[0] == pytest.approx(end, abs=1.1e-12)
    assert found.upper[0] == pytest.approx(end, abs=1.1e-12)


def test_every_evaluation_is_inspected_with_its_bracket():
    calls = []

    def inspect(alpha, bracket, value):
        assert (bracket.lower < alpha).all()
        assert (alpha < bracket.upper).all()
        assert np.array_equal(value, SHAPES["cubic"](alpha, bracket.rows))
        calls.append(alpha.size)

    _, spent = shrink("f", SHAPES["cubic"], whole(SHAPES["cubic"], ROOTS.size), 1e-9, lambda f: f > 0, inspect)
    assert sum(calls) == spent.sum()


def test_no_brackets_take_no_evaluations():
    none = np.zeros(0)
    empty = Brackets(np.zeros(0, dtype=np.intp), none, none, none, none)
    found, spent = shrink("f", lambda alpha, rows: 1 / 0, empty, 1e-12, lambda f: f > 0)
    assert found.lower.size == spent.size == 0


def test_the_estimate_is_where_the_chord_vanishes():
    rows = np.arange(4)
    bracket = Brackets(
        rows,
        np.array([0.0, 0.25, 0.0, 0.5]),
        np.array([1.0, 0.75, 1.0, 0.75]),
        np.array([1.0, 1e-300, 1.7e308, 2.0]),
        np.array([-3.0, -1e-300, -1.7e308, 0.0]),
    )
    assert crossing_estimate(bracket).tolist() == [0.25, 0.5, 0.5, 0.75]


def test_results_of_the_callable_are_checked(refuses):
    alpha, rows = np.array([0.1, 0.2]), np.array([0, 1])
    assert evaluate("value", lambda a, r: (a + r).tolist(), alpha, rows).tolist() == [0.1, 1.2]
    with refuses("value returned shape (1,) for 2 scales: return one number per scale"):
        evaluate("value", lambda a, r: a[:1], alpha, rows)
    with refuses("the result of value is NaN or infinite at index [1]: leave such updates out"):
        evaluate("value", lambda a, r: np.where(r > 0, np.nan, a), alpha, rows)


@pytest.mark.parametrize("tolerance", [0.0, 0.9e-15, 1.0, -1.0, np.nan])
def test_widths_that_cannot_be_reached_are_refused(refuses, tolerance):
    with refuses(f"tolerance is {tolerance}: give a width between 1e-15 and 1"):
        check_tolerance(tolerance)


@pytest.mark.parametrize("noise", [-1e-9, np.nan])
def test_negative_noise_is_refused(refuses, noise):
    check_tolerance(1e-15, 0.0)
    check_tolerance(0.999, np.inf)
    with refuses(f"noise is {noise}: give zero or a positive fraction"):
        check_tolerance(1e-12, noise)


def test_ends_are_given_once_per_update(refuses):
    rows, (zeros, ones) = ends_of(3)
    assert rows.tolist() == [0, 1, 2]
    assert zeros.tolist() == [0.0, 0.0, 0.0]
    assert ones.tolist() == [1.0, 1.0, 1.0]
    assert ends_of(0)[0].size == 0
    with refuses("updates is -1: give the number of updates"):
        ends_of(-1)


def test_the_allowed_rise_is_relative_to_the_larger_magnitude():
    assert allowed_rise(0.5, np.array([2.0, 1.0]), np.array([-1.0, -4.0])).tolist() == [1.0, 2.0]
    assert allowed_rise(np.inf, np.array([0.0]), np.array([0.0])).tolist() == [np.inf]


def test_rising_values_are_refused_with_their_place(refuses):
    rows, alpha = np.array([5, 9]), np.array([0.25, 0.123456789])
    before, after = np.array([1.0, 1.0]), np.array([1.5, 1.75])
    refuse_rising("φ'", rows, alpha, before, after, np.array([0.5, 0.75]))
    with refuses("φ' of update 9 rises towards scale 0.123457, so the path is not concave: use search_optimum"):
        refuse_rising("φ'", rows, alpha, before, after, np.array([0.5, 0.7]))


def test_the_finest_tolerance_ends_near_one():
    function = lambda a, rows: 1 - 1e-16 - a  # noqa: E731
    found, _ = shrink("f", function, whole(function, 1), 1e-15, lambda f: f > 0)
    assert found.upper[0] - found.lower[0] <= 1e-15


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
