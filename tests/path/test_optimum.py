from __future__ import annotations

import mpmath
import numpy as np
import pytest

from loopscope.path import (
    Location,
    concave_optimum,
    predicted_scale,
    refine_bracket,
    scale_error_interval,
    search_optimum,
)
from loopscope.path.optimum import (
    Brackets,
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


@pytest.mark.parametrize("tolerance", [1e-12, 0.3])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_bracket_closes_on_its_root_in_the_promised_rounds(shape, tolerance):
    function = SHAPES[shape]
    rounds = []

    def counted(alpha, rows):
        rounds.append(alpha)
        return function(alpha, rows)

    found = shrink("f", counted, whole(function, ROOTS.size), tolerance, lambda f: f > 0)
    assert (found.upper - found.lower <= tolerance).all()
    # The ninth power underflows to zero around its root.
    reach = 1e-12 if shape != "flat" else 1e-33
    assert (found.lower <= ROOTS + reach).all()
    assert (found.upper + reach >= ROOTS).all()
    assert np.array_equal(found.at_lower, function(found.lower, found.rows))
    assert np.array_equal(found.at_upper, function(found.upper, found.rows))
    assert (found.at_lower > 0).all()
    assert (found.at_upper <= 0).all()
    assert 1 <= len(rounds) <= np.ceil(np.log2(1 / tolerance)) + 1


@pytest.mark.parametrize(("above", "end"), [(lambda f: f > 0, 0.25), (lambda f: f >= 0, 0.75)], ids=["first", "last"])
def test_a_stretch_of_zeros_is_closed_on_from_the_side_that_counts(above, end):
    function = lambda a, rows: np.where(a < 0.25, 0.25 - a, np.where(a > 0.75, 0.75 - a, 0.0))  # noqa: E731
    found = shrink("f", function, whole(function, 1), 1e-12, above)
    assert found.lower[0] == pytest.approx(end, abs=1.1e-12)
    assert found.upper[0] == pytest.approx(end, abs=1.1e-12)


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


def test_scale_errors_over_a_bracket():
    found = scale_error_interval([0.0, 1.0, 0.375, 0.25, 0.3125], 0.25, 0.5)
    assert found.lower.tolist() == [0.25, 0.5, 0.0, 0.0, 0.0]
    assert found.upper.tolist() == [0.5, 0.75, 0.125, 0.25, 0.1875]


def test_intervals_of_concave_paths_cover_the_truth(concave_paths):
    best, _ = concave_paths.maximisers
    predicted = predicted_scale(concave_paths.slope, concave_paths.quadratic)
    for tolerance in (1e-4, 0.05):
        found = concave_optimum(concave_paths.function(1), concave_paths.count, tolerance=tolerance)
        scale = scale_error_interval(predicted, found.lower, found.upper)
        error = np.abs(predicted - best)
        assert ((scale.lower - 1e-9 <= error) & (error <= scale.upper + 1e-9)).all()


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


def test_flat_tops_choose_their_left_edge():
    def derivative(alpha, rows):
        return np.where(alpha < 0.375, 0.375 - alpha, np.where(alpha > 0.75, 0.75 - alpha, 0.0))

    found = concave_optimum(derivative, 1)
    assert found.alpha[0] == pytest.approx(0.375, abs=1e-12)
    assert found.lower[0] < 0.375 <= found.upper[0]


def test_rounding_noise_is_not_convexity():
    rng = np.random.default_rng(0)
    noisy = lambda alpha, rows: 0.3 - alpha + 1e-8 * rng.uniform(-1, 1, alpha.shape)  # noqa: E731
    assert concave_optimum(noisy, 1).alpha[0] == pytest.approx(0.3, abs=2e-8)


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


def test_the_prediction_is_a_candidate_and_regret_is_never_negative(paths):
    predicted = predicted_scale(paths.slope, paths.quadratic)
    found = search(paths, locations=5)
    assert np.array_equal(found.predicted_value, paths.at(predicted))
    assert (found.value >= found.predicted_value).all()


def test_a_plateau_is_entered_at_its_left_edge():
    value = lambda a, r: -(np.maximum(0.3 - a, 0.0) ** 2)  # noqa: E731
    found = search_optimum(value, lambda a, r: 2 * np.maximum(0.3 - a, 0.0), [1.0])
    assert found.alpha[0] == pytest.approx(0.3, abs=1e-12)
    assert found.value[0] == 0.0
