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


GRID = [0.0, 0.25, 0.5, 1.0]


def test_the_first_negative_gain_ends_the_interval():
    gains = [[0.0, -1.0, 1.0, 1.0], [0.0, 0.0, -1e-300, 1.0], [0.0, 1.0, 0.0, -1.0], [0.0, 1.0, -1.0, -2.0]]
    found = sampled_crossing(GRID, gains)
    assert found.lower.tolist() == [0.0, 0.25, 0.5, 0.25]
    assert found.upper.tolist() == [0.25, 0.5, 1.0, 0.5]
    assert found.observed.all()


def test_no_negative_gain_is_no_crossing():
    found = sampled_crossing(GRID, [[0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.5, 0.0]])
    assert not found.observed.any()
    assert np.isnan(found.lower).all()
    assert np.isnan(found.upper).all()


def test_hits_include_the_lower_end_and_exclude_the_upper():
    found = sampled_crossing(GRID, [[0.0, 1.0, -1.0, 0.0]] * 5)
    assert found.contains([0.25, 0.5, 0.3, 0.2499, np.nan]).tolist() == [True, False, True, False, False]
    assert sampled_crossing(GRID, [0.0, 1.0, -1.0, 0.0]).contains(0.25) is True


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


def test_a_root_that_may_lie_beyond_the_segment_gives_no_distance():
    found = root_sandwich(1.0, 1.0, 4.0)
    assert (found.root_lower, found.root_upper) == (0.5, 2.0)
    assert (found.boundary_lower, found.boundary_upper) == (0.5, 1.0)
    assert np.isnan(found.distance)
    assert found.bounded is False


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
