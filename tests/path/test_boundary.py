import numpy as np
import pytest
from scipy.optimize import brentq

from loopscope.path import concave_boundary, quadratic_root, sampled_crossing, uniform_grid


def parabolas(slope, bend):
    slope, bend = np.asarray(slope, dtype=float), np.asarray(bend, dtype=float)
    return lambda alpha, rows: slope[rows] * alpha - bend[rows] * alpha**2


def test_parabolas_end_at_their_root():
    rng = np.random.default_rng(2)
    root, bend = rng.uniform(1e-6, 0.999, 1000), rng.uniform(1e-3, 1e3, 1000)
    found = concave_boundary(parabolas(root * bend, bend), root * bend)
    assert (np.abs(found.r1 - root) < 1.1e-12).all()
    assert np.abs(found.r1 - quadratic_root(root * bend, -bend)).max() < 1.1e-12
    assert (found.upper - found.lower <= 1e-12).all()
    assert found.crosses.all()


def test_gains_that_stay_nonnegative_reach_the_full_step():
    found = concave_boundary(parabolas([1.0, 2.0, 0.0], [1.0, 1.0, 0.0]), [1.0, 2.0, 0.0])
    assert found.r1.tolist() == [1.0, 1.0, 1.0]
    assert found.crosses.tolist() == [False, False, False]
    assert found.lower.tolist() == found.upper.tolist() == [1.0, 1.0, 1.0]
    assert found.evaluations.tolist() == [1, 1, 1]


def test_falling_paths_have_no_progress():
    found = concave_boundary(parabolas([-1.0, 0.0], [1.0, 1.0]), [-1.0, 0.0])
    assert found.r1[0] == found.lower[0] == found.upper[0] == 0.0
    assert found.r1[1] <= 1e-12
    assert found.crosses.tolist() == [True, True]
    assert found.evaluations[0] == 1


def test_a_level_start_counts_as_progress():
    """Zero up to 1/2, then falling: r₁ is the end of the level stretch, not 0."""
    value = lambda alpha, rows: -(np.maximum(alpha - 0.5, 0.0) ** 3)  # noqa: E731
    assert concave_boundary(value, [0.0]).r1[0] == pytest.approx(0.5, abs=1e-12)


def test_boundaries_of_softmax_paths_agree_with_brent(concave_paths):
    found = concave_boundary(concave_paths.function(), concave_paths.slope)
    crossing = np.flatnonzero((concave_paths.slope > 0) & (concave_paths.gain < 0))
    assert crossing.size > 5
    for row in crossing:
        phi = lambda a, row=row: float(concave_paths.evaluate(0, np.asarray(a), np.asarray(row)))  # noqa: E731
        assert found.r1[row] == pytest.approx(brentq(phi, 1e-6, 1.0, xtol=1e-15), abs=1e-10)
    assert np.array_equal(found.crosses, concave_paths.gain < 0)
    assert ((found.lower <= found.r1) & (found.r1 <= found.upper)).all()
    assert (concave_paths.at(found.lower)[crossing] >= 0).all()
    assert (concave_paths.at(found.upper)[crossing] < 0).all()
    assert found.evaluations.max() <= 1 + 41


def test_the_boundary_lies_in_the_sampled_crossing_of_concave_paths(concave_paths):
    grid = uniform_grid(21)
    crossing = sampled_crossing(grid, concave_paths.on(grid))
    found = concave_boundary(concave_paths.function(), concave_paths.slope)
    rising = crossing.observed & (concave_paths.slope > 0)
    assert (crossing.lower - 1e-12 <= found.r1)[rising].all()
    assert (found.r1 < crossing.upper)[rising].all()


def test_finite_step_failures_have_a_boundary_inside(concave_paths):
    failures = (concave_paths.slope > 0) & (concave_paths.gain < 0)
    r1 = concave_boundary(concave_paths.function(), concave_paths.slope).r1[failures]
    assert ((r1 > 0) & (r1 < 1)).all()


def test_every_evaluation_is_counted(concave_paths):
    seen = np.zeros(concave_paths.count, dtype=int)

    def value(alpha, rows):
        np.add.at(seen, rows, 1)
        return concave_paths.evaluate(0, alpha, rows)

    assert np.array_equal(concave_boundary(value, concave_paths.slope).evaluations, seen)


def test_a_coarse_tolerance_is_kept():
    found = concave_boundary(parabolas([0.25], [1.0]), [0.25], tolerance=0.1)
    assert 1e-12 < found.upper[0] - found.lower[0] <= 0.1 or found.r1[0] == 0.25


def test_paths_that_are_not_concave_are_refused(refuses):
    bump = lambda alpha, rows: alpha * np.where(alpha == 1, -1.0, np.where(alpha < 0.6, 2.0, -1.0))  # noqa: E731
    with refuses("φ/α of update 0 rises towards scale 0.5, so the path is not concave: use search_optimum"):
        concave_boundary(bump, [1.0])
    assert concave_boundary(bump, [1.0], noise=np.inf).r1[0] == pytest.approx(0.6, abs=1e-12)
    dip = lambda alpha, rows: alpha * np.where(alpha == 1, -1.0, np.where(alpha < 0.4, 1.0, -3.0))  # noqa: E731
    with refuses("φ/α of update 0 rises towards scale 1, so the path is not concave: use search_optimum"):
        concave_boundary(dip, [1.0])
    with refuses("φ/α of update 1 rises towards scale 1, so the path is not concave: use search_optimum"):
        concave_boundary(lambda alpha, rows: alpha * (1.0 + rows), [1.0, 1.0])


def test_rounding_noise_at_tiny_scales_is_not_convexity():
    rng = np.random.default_rng(0)
    noisy = lambda alpha, rows: 1e-4 * alpha - alpha**2 + 1e-9 * rng.uniform(-1, 1, alpha.shape)  # noqa: E731
    assert concave_boundary(noisy, [1e-4]).r1[0] == pytest.approx(1e-4, abs=3e-5)


def test_the_result_reads_as_a_sentence():
    found = concave_boundary(parabolas([0.5, 2.0], [1.0, 1.0]), [0.5, 2.0])
    width = (found.upper - found.lower).max()
    assert str(found) == (f"1 of 2 updates lose their gain before the full step, in brackets no wider than {width:.1e}")
    assert str(concave_boundary(parabolas([], []), [])).startswith("0 of 0 updates")


def test_bad_arguments_are_refused(refuses):
    with refuses("slope has shape (): give one slope per update on one axis"):
        concave_boundary(parabolas([1.0], [1.0]), 1.0)
    with refuses("slope is NaN or infinite at index [0]: leave such updates out"):
        concave_boundary(parabolas([1.0], [1.0]), [np.nan])
    with refuses("tolerance is 0: give a width between 1e-15 and 1"):
        concave_boundary(parabolas([1.0], [1.0]), [1.0], tolerance=0)
    with refuses("noise is -1: give zero or a positive fraction"):
        concave_boundary(parabolas([1.0], [1.0]), [1.0], noise=-1)
    with refuses("value returned shape () for 2 scales: return one number per scale"):
        concave_boundary(lambda alpha, rows: 0.0, [1.0, 1.0])
    only_end = lambda alpha, rows: np.where(alpha == 1, -1.0, np.nan)  # noqa: E731
    with refuses("the result of value is NaN or infinite at index [0]: leave such updates out"):
        concave_boundary(only_end, [1.0])
    with refuses("value returned shape (2,) for 1 scales: return one number per scale"):
        concave_boundary(lambda alpha, rows: -alpha if alpha[0] == 1 else np.zeros(2), [1.0])
