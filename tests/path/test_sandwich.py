import numpy as np
import pytest
from scipy.optimize import brentq

from loopscope.path import quadratic_root, root_sandwich


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
