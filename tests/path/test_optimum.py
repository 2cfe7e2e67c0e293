from __future__ import annotations

import mpmath
import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar

from loopscope.path import (
    Location,
    concave_optimum,
    predicted_scale,
    refine_bracket,
    scale_error_interval,
    search_optimum,
)
from loopscope.path.optimum import (
    PAPER_LOCATIONS,
    Brackets,
    Samples,
    ceilings,
    crossing_estimate,
    curvature_of,
    evaluate,
    shrink,
    smallest_maximiser,
    split_middles,
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
        shrink("f", SHAPES["line"], whole(SHAPES["line"], 1), tolerance, lambda f: f > 0)


def test_a_closed_bracket_is_its_own_estimate():
    at, values = np.array([0.0, 1.0, 0.5]), np.array([-1.0, 5e-324, 0.0])
    with np.errstate(all="raise"):
        assert crossing_estimate(Brackets(np.arange(3), at, at, values, values)).tolist() == [0.0, 1.0, 0.5]


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
        ({"lower": -0.1}, "the bracket leaves [0, 1]: scales are fractions of the update"),
        ({"upper": 1.1}, "the bracket leaves [0, 1]: scales are fractions of the update"),
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


def test_intervals_of_concave_paths_cover_the_truth(concave_paths):
    best, _ = concave_paths.maximisers
    predicted = predicted_scale(concave_paths.slope, concave_paths.quadratic)
    for tolerance in (1e-4, 0.05):
        found = concave_optimum(concave_paths.function(1), concave_paths.count, tolerance=tolerance)
        scale = scale_error_interval(predicted, found.lower, found.upper)
        error = np.abs(predicted - best)
        assert ((scale.lower - 1e-9 <= error) & (error <= scale.upper + 1e-9)).all()


def test_bad_intervals_are_refused(refuses):
    with refuses("lower exceeds upper: give a bracket"):
        scale_error_interval(0.5, 0.6, 0.5)
    for position, name in enumerate(("predicted", "lower", "upper")):
        arguments = [0.5, 0.5, 0.5]
        arguments[position] = np.nan
        with refuses(f"{name} is NaN or infinite: leave such updates out"):
            scale_error_interval(*arguments)


def lines(slope, kappa):
    slope, kappa = np.asarray(slope, dtype=float), np.asarray(kappa, dtype=float)
    return lambda alpha, rows: slope[rows] - kappa[rows] * alpha


def test_endpoints_are_decided_by_two_slopes():
    found = concave_optimum(lines([-1.0, 0.0, 0.0, 3.0, 1e-300], [1.0, 0.0, 1.0, 1.0, 0.0]), 5)
    assert found.alpha.tolist() == [0.0, 0.0, 0.0, 1.0, 1.0]
    assert found.location.tolist() == [0, 0, 0, 2, 2]
    assert found.location.dtype == np.int8
    assert np.array_equal(found.lower, found.alpha)
    assert np.array_equal(found.upper, found.alpha)
    assert found.slope_lower.tolist() == [-1.0, 0.0, 0.0, 2.0, 1e-300]
    assert np.array_equal(found.slope_lower, found.slope_upper)
    assert found.evaluations.tolist() == [2, 2, 2, 2, 2]


def test_a_slope_that_vanishes_at_one_is_an_interior_bracket_at_its_end():
    found = concave_optimum(lines([1.0], [1.0]), 1)
    assert found.alpha[0] == 1.0
    assert found.location[0] == Location.INTERIOR
    assert found.upper[0] == 1.0
    assert found.slope_lower[0] > 0


def test_parabolas_have_their_vertex():
    rng = np.random.default_rng(5)
    vertex, kappa = rng.uniform(0, 1, 1000), rng.uniform(1e-6, 1e6, 1000)
    found = concave_optimum(lines(vertex * kappa, kappa), 1000)
    assert (np.abs(found.alpha - vertex) <= 1e-12).all()
    assert (found.upper - found.lower <= 1e-12).all()
    assert (found.location == Location.INTERIOR).all()


def test_optima_of_softmax_paths_agree_with_bisection(concave_paths):
    best, _ = concave_paths.maximisers
    found = concave_optimum(concave_paths.function(1), concave_paths.count)
    assert np.abs(found.alpha - best).max() < 1e-11
    assert ((found.location == Location.LEFT_ENDPOINT) == (best == 0)).all()
    assert ((found.location == Location.RIGHT_ENDPOINT) == (best == 1)).all()
    interior = found.location == Location.INTERIOR
    assert (found.upper - found.lower <= 1e-12).all()
    assert (found.slope_lower > 0)[interior].all()
    assert (found.slope_upper <= 0)[interior].all()
    assert np.array_equal(found.slope_lower, concave_paths.at(found.lower, 1))
    assert np.array_equal(found.slope_upper, concave_paths.at(found.upper, 1))
    assert (found.lower <= found.alpha).all()
    assert (found.alpha <= found.upper).all()
    assert found.evaluations.max() <= 2 + 41
    assert np.median(found.evaluations[interior]) <= 16


def test_optima_agree_with_brent(concave_paths):
    found = concave_optimum(concave_paths.function(1), concave_paths.count)
    for row in np.flatnonzero(found.location == Location.INTERIOR)[:50]:
        slope = lambda a, row=row: float(concave_paths.evaluate(1, np.asarray(a), np.asarray(row)))  # noqa: E731
        assert found.alpha[row] == pytest.approx(brentq(slope, 0, 1, xtol=1e-15), abs=1e-11)


def test_an_optimum_agrees_with_forty_digits():
    """φ' = e_y·v - E_p[v] for three words, its zero found by mpmath."""
    z, v = np.array([0.3, -1.2, 2.0]), np.array([1.1, -0.4, 2.5])

    def derivative(alpha, rows):
        p = np.exp(z + alpha[:, None] * v)
        return v[0] - (p @ v) / p.sum(axis=1) + 1.3

    with mpmath.workdps(40):
        w = [mpmath.mpf(float(x)) for x in v]
        logit = [mpmath.mpf(float(x)) for x in z]

        def exact(a):
            p = [mpmath.exp(zi + a * vi) for zi, vi in zip(logit, w, strict=True)]
            mean = sum(pi * vi for pi, vi in zip(p, w, strict=True)) / sum(p)
            return w[0] - mean + mpmath.mpf(1.3)

        root = float(mpmath.findroot(exact, 0.5))
    assert 0 < root < 1
    assert abs(concave_optimum(derivative, 1).alpha[0] - root) < 1e-12


def test_every_evaluation_is_counted(concave_paths):
    seen = np.zeros(concave_paths.count, dtype=int)

    def derivative(alpha, rows):
        np.add.at(seen, rows, 1)
        return concave_paths.evaluate(1, alpha, rows)

    assert np.array_equal(concave_optimum(derivative, concave_paths.count).evaluations, seen)


def test_flat_tops_choose_their_left_edge():
    def derivative(alpha, rows):
        return np.where(alpha < 0.375, 0.375 - alpha, np.where(alpha > 0.75, 0.75 - alpha, 0.0))

    found = concave_optimum(derivative, 1)
    assert found.alpha[0] == pytest.approx(0.375, abs=1e-12)
    assert found.lower[0] < 0.375 <= found.upper[0]


def test_a_coarser_tolerance_costs_less(concave_paths):
    fine = concave_optimum(concave_paths.function(1), concave_paths.count)
    coarse = concave_optimum(concave_paths.function(1), concave_paths.count, tolerance=1e-3)
    assert (coarse.upper - coarse.lower).max() > 1e-12
    assert (coarse.upper - coarse.lower).max() <= 1e-3
    assert coarse.evaluations.sum() < fine.evaluations.sum()
    assert (coarse.lower <= fine.upper).all()
    assert (fine.lower <= coarse.upper).all()


def test_a_constant_added_to_the_utility_changes_nothing(concave_paths):
    """Only φ' enters; a zero displacement has φ' = 0 and stays where it is."""
    found = concave_optimum(lambda alpha, rows: np.zeros(alpha.shape), 3)
    assert found.alpha.tolist() == [0.0, 0.0, 0.0]


def test_rounding_noise_is_not_convexity():
    rng = np.random.default_rng(0)
    noisy = lambda alpha, rows: 0.3 - alpha + 1e-8 * rng.uniform(-1, 1, alpha.shape)  # noqa: E731
    assert concave_optimum(noisy, 1).alpha[0] == pytest.approx(0.3, abs=2e-8)


def test_bad_arguments_are_refused(refuses):
    with refuses("tolerance is 0: give a width between 1e-15 and 1"):
        concave_optimum(lines([1.0], [1.0]), 1, tolerance=0)
    with refuses("derivative returned shape () for 2 scales: return one number per scale"):
        concave_optimum(lambda alpha, rows: 0.0, 2)
    with refuses("the result of derivative is NaN or infinite at index [0]: leave such updates out"):
        concave_optimum(lambda alpha, rows: alpha * np.nan, 2)
    only_ends = lambda alpha, rows: np.where(alpha == 0, 1.0, np.where(alpha == 1, -1.0, np.nan))  # noqa: E731
    with refuses("the result of derivative is NaN or infinite at index [0]: leave such updates out"):
        concave_optimum(only_ends, 1)
    late_nan = lambda alpha, rows: np.where(alpha == 1, np.nan, 1.0)  # noqa: E731
    with refuses("the result of derivative is NaN or infinite at index [0]: leave such updates out"):
        concave_optimum(late_nan, 1)


def samples_of(family, count):
    nodes = np.linspace(0, 1, count)
    return Samples(np.tile(nodes, (family.count, 1)), family.on(nodes), family.on(nodes, 1))


def test_ceilings_hold_on_every_path(paths, rounding):
    samples = samples_of(paths, 9)
    ceiling = ceilings(samples, paths.bound_of(2))
    inside = paths.dense_samples(0)[:, :-1].reshape(paths.count, 8, -1).max(axis=-1)
    assert (inside <= ceiling + rounding * (1 + np.abs(ceiling))).all()


def test_a_ceiling_is_attained_by_parabolas_that_meet():
    """Equal ends: the two parabolas meet in the middle of the cell, at φ(l) + φ'(l)/2 + K/8."""
    samples = Samples(np.array([[0.0, 1.0]]), np.array([[0.0, 0.0]]), np.array([[1.0, -1.0]]))
    assert ceilings(samples, np.array([0.0])).tolist() == [[0.5]]
    assert ceilings(samples, np.array([4.0])).tolist() == [[1.0]]
    flat = Samples(np.array([[0.0, 1.0]]), np.array([[0.0, 0.0]]), np.array([[0.0, 0.0]]))
    assert ceilings(flat, np.array([8.0])).tolist() == [[1.0]]
    assert ceilings(flat, np.array([0.0])).tolist() == [[0.0]]


def test_the_ceiling_is_at_least_both_ends():
    samples = Samples(np.array([[0.0, 0.5, 1.0]]), np.array([[3.0, 0.0, 2.0]]), np.array([[-9.0, 0.0, 9.0]]))
    assert ceilings(samples, np.array([1.0])).tolist() == [[3.0, 2.0]]


def test_a_tilted_cell_meets_off_centre():
    """2x from the left and 3/2 - x from the right meet at x = 1/2; K = 1 adds x²/2 to each."""
    samples = Samples(np.array([[0.0, 1.0]]), np.array([[0.0, 0.5]]), np.array([[2.0, -1.0]]))
    assert ceilings(samples, np.array([0.0]))[0, 0] == pytest.approx(1.0)
    assert ceilings(samples, np.array([1.0]))[0, 0] == pytest.approx(2 * 0.5 + 0.5 * 0.25)


def test_a_narrow_cell_meets_within_itself():
    """2x from the left and 3/4 - x from the right meet at x = 1/4; K = 8 adds 4x² to each."""
    samples = Samples(np.array([[0.0, 0.5]]), np.array([[0.0, 0.25]]), np.array([[2.0, -1.0]]))
    assert ceilings(samples, np.array([0.0]))[0, 0] == pytest.approx(0.5)
    assert ceilings(samples, np.array([8.0]))[0, 0] == pytest.approx(0.5 + 4 * 0.0625)


def test_inconsistent_curvature_never_looks_beyond_the_cell():
    steep = Samples(np.array([[0.0, 1.0]]), np.array([[0.0, 10.0]]), np.zeros((1, 2)))
    assert ceilings(steep, np.array([0.1])).tolist() == [[10.0]]
    assert ceilings(steep._replace(value=np.array([[0.0, -10.0]])), np.array([0.1])).tolist() == [[0.0]]


def test_the_estimate_is_one_and_a_half_times_the_largest_bend():
    line = Samples(np.array([[0.0, 0.5, 1.0]]), np.array([[0.0, 0.5, 1.0]]), np.array([[1.0, 1.0, 1.0]]))
    assert curvature_of(line, None).tolist() == [0.0]
    turning = line._replace(slope=np.array([[1.0, 1.0, 3.0]]))
    # Secant 2 / 0.5 = 4; from the right end the value bends by 2 |0.5 - 1.5| / 0.25 = 8.
    assert curvature_of(turning, None).tolist() == [12.0]
    forward = line._replace(slope=np.array([[4.0, 1.0, 1.0]]))
    assert curvature_of(forward, None).tolist() == [1.5 * 2 * 1.5 / 0.25]
    wide = Samples(np.array([[0.0, 1.0]]), np.array([[0.0, 3.0]]), np.array([[1.0, 1.0]]))
    assert curvature_of(wide, None).tolist() == [1.5 * 2 * 2]
    parabola = Samples(np.array([[0.0, 0.5, 1.0]]), np.array([[0.0, 0.5, 2.0]]), np.array([[0.0, 2.0, 4.0]]))
    assert curvature_of(parabola, None) == pytest.approx([6.0])


def test_the_estimate_covers_smooth_paths(paths):
    estimate = curvature_of(samples_of(paths, 129), None)
    assert (np.abs(paths.dense_samples(2)).max(axis=1) <= estimate + 1e-9).mean() > 0.99


def test_a_given_bound_is_used_as_it_is(refuses):
    samples = Samples(np.array([[0.0, 1.0]] * 2), np.zeros((2, 2)), np.array([[0.0, 1.0], [0.0, -3.0]]))
    given = np.array([1.0, 3.0])
    assert curvature_of(samples, given) is given
    line = "curvature_bound is smaller than a sampled change of slope at index [1]: give a bound valid on [0, 1]"
    with refuses(line):
        curvature_of(samples, np.array([1.0, 2.99999]))
    assert curvature_of(samples, np.array([1.0, 3.0 - 2e-6])).shape == (2,)


def test_the_rounding_of_slopes_is_relative_to_each_update_and_cell(refuses):
    alpha = np.array([[0.0, 0.01, 1.0]] * 2)
    slope = np.array([[1e6, 1e6, 1e6], [1.0, 1.0 + 0.9e-6, 1.0]])
    samples = Samples(alpha, np.zeros((2, 3)), slope)
    assert curvature_of(samples, np.zeros(2)).tolist() == [0.0, 0.0]
    worse = samples._replace(slope=slope + np.array([[0.0, 0.0, 0.0], [0.0, 0.2e-6, 0.0]]))
    with refuses(
        "curvature_bound is smaller than a sampled change of slope at index [1]: give a bound valid on [0, 1]"
    ):
        curvature_of(worse, np.zeros(2))


def test_cells_with_the_highest_ceiling_are_split_first():
    samples = Samples(
        np.array([[0.0, 0.25, 0.5, 1.0]]), np.array([[0.0, 5.0, 1.0, 2.0]]), np.array([[0.0, 0.0, 0.0, 0.0]])
    )
    # With K = 0 the ceilings are the larger ends: 5, 5, 2.
    assert split_middles(samples, np.zeros(1), 3).tolist() == [[0.125, 0.375, 0.75]]
    assert split_middles(samples, np.zeros(1), 1).tolist() == [[0.125]]


def test_equal_ceilings_split_the_wider_cell_first():
    samples = Samples(np.array([[0.0, 0.25, 0.5, 1.0]]), np.zeros((1, 4)), np.zeros((1, 4)))
    assert split_middles(samples, np.zeros(1), 3).tolist() == [[0.75, 0.125, 0.375]]


def test_the_narrowest_cells_are_left_alone():
    alpha = np.array([[0.0, 0.5, 0.5 + 0.9e-6, 1.0]])
    samples = Samples(alpha, np.array([[0.0, 9.0, 9.0, 0.0]]), np.zeros((1, 4)))
    assert split_middles(samples, np.zeros(1), 3)[0, -1] == pytest.approx(0.5 + 0.45e-6, abs=1e-12)
    peak = Samples(np.array([[0.0, 0.5, 0.5 + 1.1e-6, 1.0]]), np.array([[0.0, 8.0, 9.0, 0.0]]), np.zeros((1, 4)))
    assert split_middles(peak, np.zeros(1), 3)[0] == pytest.approx([0.75, 0.5, 0.25], abs=1e-6)


def test_equal_values_choose_the_smaller_scale():
    alpha, value = smallest_maximiser(
        np.array([1, 0, 0, 1, 0]), np.array([0.9, 0.8, 0.2, 0.1, 0.5]), np.array([3.0, 7.0, 7.0, 2.0, 6.0])
    )
    assert alpha.tolist() == [0.2, 0.9]
    assert value.tolist() == [7.0, 3.0]


def search(family, **options):
    predicted = predicted_scale(family.slope, family.quadratic)
    return search_optimum(family.function(), family.function(1), predicted, **options)


def test_the_best_value_of_every_path_is_found(paths, rounding):
    best, value = paths.maximisers
    found = search(paths)
    assert (found.value >= value - rounding * (1 + np.abs(value))).all()
    assert np.array_equal(found.value, paths.at(found.alpha))
    clear = np.abs(found.alpha - best) < 1e-6
    assert clear.mean() > 0.99


def test_fewer_locations_still_find_it(paths):
    _, value = paths.maximisers
    found = search(paths, locations=33)
    assert (found.value >= value - 1e-9 * (1 + np.abs(value))).mean() > 0.98
    assert found.locations == 33


def test_the_ceiling_is_a_bound_when_curvature_is_bounded(paths, rounding):
    _, value = paths.maximisers
    found = search(paths, locations=17, curvature_bound=paths.bound_of(2))
    assert (value <= found.ceiling + rounding * (1 + np.abs(value))).all()
    assert (paths.dense_samples(0).max(axis=1) <= found.ceiling + rounding * (1 + np.abs(value))).all()
    assert (found.ceiling >= found.value).all()
    assert np.array_equal(found.curvature, paths.bound_of(2))
    closer = search(paths, locations=65, curvature_bound=paths.bound_of(2))
    assert (closer.ceiling - closer.value).mean() < 0.2 * (found.ceiling - found.value).mean()


def test_the_prediction_is_a_candidate_and_regret_is_never_negative(paths):
    predicted = predicted_scale(paths.slope, paths.quadratic)
    found = search(paths, locations=5)
    assert np.array_equal(found.predicted_value, paths.at(predicted))
    assert (found.value >= found.predicted_value).all()


def test_a_prediction_that_beats_every_location_is_chosen():
    spike = lambda alpha, rows: np.where(np.abs(alpha - 0.3) < 1e-9, 1.0, 0.0)  # noqa: E731
    flat = lambda alpha, rows: np.zeros(alpha.shape)  # noqa: E731
    found = search_optimum(spike, flat, [0.3])
    assert (found.alpha[0], found.value[0], found.predicted_value[0]) == (0.3, 1.0, 1.0)


def test_refined_maxima_agree_with_a_general_optimiser(paths):
    found = search(paths)
    for row in paths.rows[:40]:
        a = found.alpha[row]
        if 0 < a < 1:
            phi = lambda x, row=row: -float(paths.evaluate(0, np.asarray(x), np.asarray(row)))  # noqa: E731
            near = minimize_scalar(
                phi, bounds=(max(0, a - 1e-3), min(1, a + 1e-3)), method="bounded", options={"xatol": 1e-9}
            )
            assert abs(near.x - a) < 1e-6
            assert found.value[row] >= -near.fun - 1e-12 * (1 + abs(near.fun))


def test_local_maxima_are_refined_to_the_tolerance():
    calls = []

    def slope(alpha, rows):
        calls.append(alpha.size)
        return 12 * np.cos(12 * alpha)

    wave = lambda alpha, rows: np.sin(12 * alpha)  # noqa: E731
    found = search_optimum(wave, slope, [1.0, 0.0])
    assert np.abs(found.alpha - np.pi / 24).max() < 1e-12
    assert found.roots.tolist() == [2, 2]
    fine = sum(calls)
    calls.clear()
    search_optimum(wave, slope, [1.0, 0.0], tolerance=1e-3)
    assert sum(calls) < fine


def test_it_says_what_it_searched():
    seen = [[], [], []]

    def value(alpha, rows):
        for row, scale in zip(rows, alpha, strict=True):
            seen[row].append(scale)
        return np.sin(3 * alpha) + rows

    found = search_optimum(value, lambda alpha, rows: 3 * np.cos(3 * alpha), [0.5, 0.5, 0.5])
    assert found.locations == PAPER_LOCATIONS == 257
    assert found.searched.shape == (3, 257)
    for row in range(3):
        assert len(seen[row]) == 257 + 1 + 1
        assert np.array_equal(found.searched[row], np.sort(seen[row][:257]))
    assert found.roots.tolist() == [1, 1, 1]


def test_a_line_is_its_own_ceiling():
    found = search_optimum(lambda a, r: a, lambda a, r: np.ones(a.shape), [1.0], curvature_bound=0.0)
    assert found.alpha.tolist() == [1.0]
    assert found.ceiling.tolist() == [1.0]


def widest(found):
    return np.diff(found.searched).max(axis=1).tolist()


def test_locations_gather_where_the_ceiling_is_high():
    seen = []

    def value(alpha, rows):
        seen.extend(alpha.tolist())
        return -((alpha - 0.9) ** 2)

    search_optimum(value, lambda alpha, rows: -2 * (alpha - 0.9), [0.9], locations=65)
    assert np.mean(np.abs(np.array(seen) - 0.9) < 0.1) > 0.4


@pytest.mark.parametrize("locations", [3, 4, 16, 33, 50, 257])
def test_every_budget_is_spent_exactly(locations):
    found = search_optimum(lambda a, r: np.sin(9 * a), lambda a, r: 9 * np.cos(9 * a), [0.3], locations=locations)
    assert found.locations == locations
    assert found.searched.shape == (1, locations)


@pytest.mark.parametrize("locations", [3, 8, 9, 50, 257])
def test_half_of_the_locations_are_even(locations):
    calls = []

    def value(alpha, rows):
        calls.append(alpha)
        return np.sin(9 * alpha)

    search_optimum(value, lambda a, r: 9 * np.cos(9 * a), [0.3], locations=locations)
    assert np.array_equal(calls[0], np.arange((locations + 1) // 2) / ((locations + 1) // 2 - 1))


def test_a_large_given_curvature_spreads_the_search():
    value, derivative = (lambda a, r: -((a - 0.9) ** 2)), (lambda a, r: 1.8 - 2 * a)
    assert widest(search_optimum(value, derivative, [0.9], curvature_bound=1e9)) == [1 / 256]
    assert widest(search_optimum(value, derivative, [0.9])) == [1 / 128]


def test_a_plateau_is_entered_at_its_left_edge():
    value = lambda a, r: -(np.maximum(0.3 - a, 0.0) ** 2)  # noqa: E731
    found = search_optimum(value, lambda a, r: 2 * np.maximum(0.3 - a, 0.0), [1.0])
    assert found.alpha[0] == pytest.approx(0.3, abs=1e-12)
    assert found.value[0] == 0.0


def test_failures_of_the_callables_are_named_wherever_they_happen(refuses):
    smooth, slope = (lambda a, r: np.sin(3 * a)), (lambda a, r: 3 * np.cos(3 * a))
    dyadic = lambda a: a * 2**20 % 1 == 0  # noqa: E731
    with refuses("the result of derivative is NaN or infinite at index [0]: leave such updates out"):
        search_optimum(smooth, lambda a, r: np.where(dyadic(a), slope(a, r), np.nan), [0.5])
    with refuses("the result of value is NaN or infinite at index [0]: leave such updates out"):
        search_optimum(lambda a, r: np.where(dyadic(a), smooth(a, r), np.nan), slope, [0.5])
    with refuses("the result of value is NaN or infinite at index [0]: leave such updates out"):
        search_optimum(lambda a, r: np.where(a == 0.3, np.nan, smooth(a, r)), slope, [0.3])


def test_flat_paths_choose_zero_and_are_searched_evenly():
    seen = []

    def value(alpha, rows):
        seen.extend(alpha.tolist())
        return np.zeros(alpha.shape)

    found = search_optimum(value, lambda a, r: np.zeros(a.shape), [1.0], locations=257)
    assert found.alpha.tolist() == [0.0]
    assert found.value.tolist() == found.predicted_value.tolist() == [0.0]
    assert widest(found) == [1 / 256]
    assert found.roots.tolist() == [0]


def test_a_constant_added_to_the_values_changes_no_choice():
    slope = lambda a, r: 9 * np.cos(9 * a) - a  # noqa: E731
    plain = search_optimum(lambda a, r: np.sin(9 * a) - a**2 / 2, slope, [0.3])
    shifted = search_optimum(lambda a, r: np.sin(9 * a) - a**2 / 2 + 8, slope, [0.3])
    assert plain.alpha == pytest.approx(shifted.alpha, abs=1e-9)
    assert plain.value - plain.predicted_value == pytest.approx(shifted.value - shifted.predicted_value, abs=1e-12)


def test_no_updates_take_no_evaluations():
    found = search_optimum(lambda a, r: a, lambda a, r: a, [])
    assert found.alpha.shape == (0,)


def test_general_optimum_bad_arguments_are_refused(refuses):
    line, one = (lambda a, r: a), (lambda a, r: np.ones(a.shape))
    with refuses("locations is 2: give at least 3"):
        search_optimum(line, one, [0.5], locations=2)
    with refuses("tolerance is 0: give a width between 1e-15 and 1"):
        search_optimum(line, one, [0.5], tolerance=0)
    with refuses("predicted has shape (): give one scale per update on one axis"):
        search_optimum(line, one, 0.5)
    with refuses("predicted lies outside [0, 1] at index [0]: scales are fractions of the update"):
        search_optimum(line, one, [1.5])
    with refuses("predicted is NaN or infinite at index [0]: leave such updates out"):
        search_optimum(line, one, [np.nan])
    with refuses("curvature_bound is negative: it bounds a magnitude, give zero or more"):
        search_optimum(line, one, [0.5], curvature_bound=-1.0)
    with refuses("shapes differ (predicted (1,), curvature_bound (2,)): give one entry per update in each"):
        search_optimum(line, one, [0.5], curvature_bound=[1.0, 1.0])
    with refuses(
        "curvature_bound is smaller than a sampled change of slope at index [0]: give a bound valid on [0, 1]"
    ):
        search_optimum(lambda a, r: a**2, lambda a, r: 2 * a, [0.5], curvature_bound=1.0)
    with refuses("value returned shape () for 129 scales: return one number per scale"):
        search_optimum(lambda a, r: 0.0, one, [0.5])
    with refuses("derivative returned shape () for 129 scales: return one number per scale"):
        search_optimum(line, lambda a, r: 0.0, [0.5])
