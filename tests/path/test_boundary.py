from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq

from loopscope.path import concave_boundary, quadratic_root, root_sandwich, sampled_crossing, uniform_grid


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


def test_gains_that_stay_nonnegative_reach_the_full_step():
    found = concave_boundary(parabolas([1.0, 2.0, 0.0], [1.0, 1.0, 0.0]), [1.0, 2.0, 0.0])
    assert found.r1.tolist() == [1.0, 1.0, 1.0]
    assert found.lower.tolist() == found.upper.tolist() == [1.0, 1.0, 1.0]


def test_falling_paths_have_no_progress():
    found = concave_boundary(parabolas([-1.0, 0.0], [1.0, 1.0]), [-1.0, 0.0])
    assert found.r1[0] == found.lower[0] == found.upper[0] == 0.0
    assert found.r1[1] <= 1e-12


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
    assert np.array_equal(found.lower < 1, concave_paths.gain < 0)
    assert ((found.lower <= found.r1) & (found.r1 <= found.upper)).all()
    assert (concave_paths.at(found.lower)[crossing] >= 0).all()
    assert (concave_paths.at(found.upper)[crossing] < 0).all()


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


def test_evaluations_are_few(concave_paths):
    seen = np.zeros(concave_paths.count, dtype=int)

    def value(alpha, rows):
        np.add.at(seen, rows, 1)
        return concave_paths.evaluate(0, alpha, rows)

    concave_boundary(value, concave_paths.slope)
    assert seen.max() <= 1 + 41
    assert (seen[concave_paths.gain >= 0] == 1).all()


def test_a_coarse_tolerance_is_kept():
    found = concave_boundary(parabolas([0.25], [1.0]), [0.25], tolerance=0.1)
    assert 1e-12 < found.upper[0] - found.lower[0] <= 0.1 or found.r1[0] == 0.25


def test_rounding_noise_at_tiny_scales_is_not_convexity():
    rng = np.random.default_rng(0)
    noisy = lambda alpha, rows: 1e-4 * alpha - alpha**2 + 1e-9 * rng.uniform(-1, 1, alpha.shape)  # noqa: E731
    assert concave_boundary(noisy, [1e-4]).r1[0] == pytest.approx(1e-4, abs=3e-5)


def test_bad_arguments_are_refused(refuses):
    with refuses("slope has shape (): give one slope per update on one axis"):
        concave_boundary(parabolas([1.0], [1.0]), 1.0)
    with refuses("slope is NaN or infinite at index [0]: leave such updates out"):
        concave_boundary(parabolas([1.0], [1.0]), [np.nan])
    with refuses("tolerance is 0: give a width between 1e-15 and 1"):
        concave_boundary(parabolas([1.0], [1.0]), [1.0], tolerance=0)
    with refuses("value returned shape () for 2 scales: return one number per scale"):
        concave_boundary(lambda alpha, rows: 0.0, [1.0, 1.0])
    only_end = lambda alpha, rows: np.where(alpha == 1, -1.0, np.nan)  # noqa: E731
    with refuses("the result of value is NaN or infinite at index [0]: leave such updates out"):
        concave_boundary(only_end, [1.0])
    with refuses("value returned shape (2,) for 1 scales: return one number per scale"):
        concave_boundary(lambda alpha, rows: -alpha if alpha[0] == 1 else np.zeros(2), [1.0])


GRID = [0.0, 0.25, 0.5, 1.0]


@pytest.mark.parametrize(
    ("gains", "lower", "upper"),
    [
        ([0.0, -1.0, 1.0, 1.0], 0.0, 0.25),
        ([0.0, 0.0, -1e-300, 1.0], 0.25, 0.5),
        ([0.0, 1.0, 0.0, -1.0], 0.5, 1.0),
        ([0.0, 1.0, -1.0, -2.0], 0.25, 0.5),
    ],
)
def test_the_first_negative_gain_ends_the_interval(gains, lower, upper):
    found = sampled_crossing(GRID, gains)
    assert (found.lower, found.upper, found.observed) == (lower, upper, True)
    assert type(found.lower) is float


@pytest.mark.parametrize("gains", [[0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.5, 0.0]])
def test_no_negative_gain_is_no_crossing(gains):
    found = sampled_crossing(GRID, gains)
    assert found.observed is False
    assert np.isnan(found.lower)
    assert np.isnan(found.upper)


def test_many_updates_are_read_at_once():
    found = sampled_crossing(GRID, [[0.0, 1.0, -1.0, 0.0], [0.0, 1.0, 1.0, 1.0], [0.0, -1.0, 1.0, 1.0]])
    assert np.array_equal(found.lower, [0.25, np.nan, 0.0], equal_nan=True)
    assert np.array_equal(found.upper, [0.5, np.nan, 0.25], equal_nan=True)
    assert found.observed.tolist() == [True, False, True]


def test_hits_include_the_lower_end_and_exclude_the_upper():
    found = sampled_crossing(GRID, [[0.0, 1.0, -1.0, 0.0]] * 5)
    assert found.contains([0.25, 0.5, 0.3, 0.2499, np.nan]).tolist() == [True, False, True, False, False]
    assert sampled_crossing(GRID, [0.0, 1.0, -1.0, 0.0]).contains(0.25) is True


def test_an_unobserved_crossing_is_never_hit():
    assert sampled_crossing(GRID, [0.0, 1.0, 1.0, 1.0]).contains(0.5) is False


def test_one_crossing_is_compared_with_many_roots():
    assert sampled_crossing(GRID, [0.0, 1.0, -1.0, 0.0]).contains([0.3, 0.6]).tolist() == [True, False]


def test_roots_and_crossings_belong_to_the_same_updates(refuses):
    found = sampled_crossing(GRID, [[0.0, 1.0, -1.0, 0.0]] * 2)
    with refuses("shapes differ (root (3,), crossing (2,)): give one entry per update in each"):
        found.contains([0.1, 0.2, 0.3])
    assert found.contains([np.inf, 0.25]).tolist() == [False, True]


def test_the_interval_holds_a_zero_of_the_path(paths):
    grid = uniform_grid(21)
    found = sampled_crossing(grid, paths.on(grid))
    rows = np.flatnonzero(found.observed)
    lower, upper = found.lower[rows].copy(), found.upper[rows].copy()
    for _ in range(60):
        middle = 0.5 * (lower + upper)
        negative = paths.evaluate(0, middle, rows) < 0
        lower, upper = np.where(negative, lower, middle), np.where(negative, middle, upper)
    zeros = 0.5 * (lower + upper)
    assert (np.abs(paths.evaluate(0, zeros, rows)) < 1e-12).all()
    assert ((found.lower[rows] <= zeros) & (zeros < found.upper[rows])).all()


def test_the_root_of_a_parabola_always_hits():
    grid = uniform_grid(21)
    rng = np.random.default_rng(3)
    slope, quadratic = rng.uniform(0.01, 1, 500), -rng.uniform(0.5, 2, 500)
    found = sampled_crossing(grid, slope[:, None] * grid + quadratic[:, None] * grid**2)
    root = quadratic_root(slope, quadratic)
    assert np.array_equal(found.contains(root), found.observed)


def test_gains_start_at_zero(refuses):
    with refuses("gains at scale 0 are not zero at index [1]: subtract the utility of the current state"):
        sampled_crossing(GRID, [[0.0, 1.0, 1.0, 1.0], [0.1, 1.0, 1.0, 1.0]])


def test_bad_grids_and_gains_are_refused(refuses):
    with refuses("grid ends at 0.5: it must contain 1, the full update"):
        sampled_crossing([0.0, 0.5], [0.0, 1.0])
    with refuses("gains has shape (2,) for 4 scales: give one entry per scale on the last axis"):
        sampled_crossing(GRID, [0.0, 1.0])


def test_the_intervals_are_those_of_the_proposition():
    found = root_sandwich(0.125, 0.5, 1.0)
    assert found == (0.25, 0.5, 0.25, 0.5, 0.25, True)
    assert type(found.distance) is float
    assert type(found.bounded) is bool


def test_a_root_that_may_lie_beyond_the_segment_gives_no_distance():
    found = root_sandwich(1.0, 1.0, 4.0)
    assert (found.root_lower, found.root_upper) == (0.5, 2.0)
    assert (found.boundary_lower, found.boundary_upper) == (0.5, 1.0)
    assert np.isnan(found.distance)
    assert found.bounded is False


def test_the_distance_needs_the_upper_end_strictly_inside():
    assert root_sandwich(0.5, 1.0, 4.0).bounded is False
    assert root_sandwich(0.499, 1.0, 4.0).bounded is True


def test_both_ends_are_capped_at_one():
    found = root_sandwich(8.0, 1.0, 4.0)
    assert (found.boundary_lower, found.boundary_upper) == (1.0, 1.0)
    assert (found.root_lower, found.root_upper) == (4.0, 16.0)


def test_equal_bounds_pin_the_root():
    found = root_sandwich(0.1, 0.3, 0.3)
    assert found.distance == 0.0
    assert found.root_lower == found.root_upper


def test_slopes_that_do_not_rise_have_no_sandwich():
    found = root_sandwich([0.0, -1.0, 0.1], 1.0, 2.0)
    for field in found[:5]:
        assert np.array_equal(np.isnan(field), [True, True, False])
    assert found.bounded.tolist() == [False, False, True]


def test_boundary_and_root_lie_in_the_sandwich_of_concave_paths(concave_paths, rounding):
    lowest, highest = concave_paths.extremes_of_curvature()
    usable = (highest < 0) & (concave_paths.slope > 0)
    rows = concave_paths.rows[usable]
    assert rows.size > 10
    slope = concave_paths.slope[usable]
    found = root_sandwich(slope, -highest[usable], -lowest[usable])
    root = quadratic_root(slope, concave_paths.quadratic[usable])
    for index, row in enumerate(rows):
        phi = lambda a, row=row: float(concave_paths.evaluate(0, np.asarray(a), np.asarray(row)))  # noqa: E731
        r1 = 1.0 if phi(1.0) >= 0 else brentq(phi, 1e-9, 1.0, xtol=1e-14)
        assert found.boundary_lower[index] - rounding <= r1 <= found.boundary_upper[index] + rounding
        assert found.root_lower[index] - rounding <= root[index] <= found.root_upper[index] + rounding
        if found.bounded[index]:
            assert abs(root[index] - r1) <= found.distance[index] + rounding


def test_some_sandwiches_are_bounded_and_tight():
    """Nearly quadratic cubics: r₁ by the quadratic formula for φ(α)/α."""
    rng = np.random.default_rng(11)
    slope, bend, twist = rng.uniform(0.05, 0.4, 2000), rng.uniform(1, 3, 2000), rng.uniform(-0.1, 0.1, 2000)
    curvatures = np.stack([-bend, -bend + 6 * twist])
    found = root_sandwich(slope, -curvatures.max(axis=0), -curvatures.min(axis=0))
    # A - (bend/2) α + twist α² = 0
    discriminant = np.sqrt(bend**2 / 4 - 4 * twist * slope)
    r1 = 2 * slope / (bend / 2 + discriminant)
    inside = found.bounded
    assert inside.sum() > 1000
    gap = np.abs(quadratic_root(slope, -bend / 2) - r1)
    assert (gap <= found.distance + 1e-14)[inside].all()
    assert (gap > 0.1 * found.distance)[inside].any()
    assert ((found.boundary_lower <= r1 + 1e-14) & (r1 <= found.boundary_upper + 1e-14))[inside].all()


def test_extremes_raise_no_floating_point_error():
    with np.errstate(all="raise"):
        found = root_sandwich(1.7e308, 5e-324, 1.7e308)
    assert found.root_upper == np.inf
    assert (found.boundary_lower, found.boundary_upper) == (1.0, 1.0)


@pytest.mark.parametrize("mu", [0.0, -1.0])
def test_curvature_that_may_vanish_is_refused(refuses, mu):
    with refuses("mu is not positive: the sandwich needs curvature that stays below zero"):
        root_sandwich(1.0, mu, 1.0)


def test_bad_bounds_are_refused(refuses):
    with refuses("mu exceeds L_D at index [1]: mu bounds -φ'' from below and L_D from above"):
        root_sandwich(1.0, [1.0, 2.0], [1.0, 1.9])
    with refuses("slope is NaN or infinite: leave such updates out"):
        root_sandwich(np.nan, 1.0, 1.0)
    with refuses("mu is NaN or infinite: leave such updates out"):
        root_sandwich(1.0, np.nan, 1.0)
    with refuses("L_D is NaN or infinite: leave such updates out"):
        root_sandwich(1.0, 1.0, np.inf)
