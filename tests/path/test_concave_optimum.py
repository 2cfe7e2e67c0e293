import mpmath
import numpy as np
import pytest
from scipy.optimize import brentq

from loopscope.path import Location, concave_optimum


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


def test_paths_that_are_not_concave_are_refused(refuses):
    rising = lines([1.0, -2.0], [1.0, -1.0])
    with refuses("φ' of update 1 rises towards scale 1, so the path is not concave: use search_optimum"):
        concave_optimum(rising, 2)
    assert concave_optimum(rising, 2, noise=1.0).alpha.tolist() == [1.0, 0.0]
    assert concave_optimum(lines([0.0], [-1.0]), 1, noise=np.inf).alpha.tolist() == [0.0]
    bump = lambda alpha, rows: np.where(alpha == 0, 1.0, np.where(alpha < 0.6, 2.0, -1.0))  # noqa: E731
    with refuses("φ' of update 0 rises towards scale 0.5, so the path is not concave: use search_optimum"):
        concave_optimum(bump, 1)
    assert concave_optimum(bump, 1, noise=np.inf).alpha[0] == pytest.approx(0.6, abs=1e-12)
    dip = lambda alpha, rows: np.where(alpha == 1, -1.0, np.where(alpha < 0.4, 1.0, -2.0))  # noqa: E731
    with refuses("φ' of update 0 rises towards scale 1, so the path is not concave: use search_optimum"):
        concave_optimum(dip, 1)


def test_rounding_noise_is_not_convexity():
    rng = np.random.default_rng(0)
    noisy = lambda alpha, rows: 0.3 - alpha + 1e-8 * rng.uniform(-1, 1, alpha.shape)  # noqa: E731
    assert concave_optimum(noisy, 1).alpha[0] == pytest.approx(0.3, abs=2e-8)


def test_the_result_reads_as_a_sentence():
    found = concave_optimum(lines([-1.0, 3.0, 4.0, 1.0], [1.0, 1.0, 1.0, 3.0]), 4, tolerance=0.5)
    width = found.upper[3] - found.lower[3]
    assert str(found) == f"4 optima: 1 at 0, 2 at 1, 1 interior in brackets no wider than {width:.1e}"
    assert str(concave_optimum(lines([], []), 0)).startswith("0 optima: 0 at 0, 0 at 1, 0 interior")


def test_bad_arguments_are_refused(refuses):
    with refuses("updates is -1: give the number of updates"):
        concave_optimum(lines([1.0], [1.0]), -1)
    with refuses("tolerance is 0: give a width between 1e-15 and 1"):
        concave_optimum(lines([1.0], [1.0]), 1, tolerance=0)
    with refuses("noise is -1: give zero or a positive fraction"):
        concave_optimum(lines([1.0], [1.0]), 1, noise=-1)
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
