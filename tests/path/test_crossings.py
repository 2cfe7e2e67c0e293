import numpy as np
import pytest

from loopscope.path import quadratic_root, sampled_crossing, uniform_grid

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
    assert str(found) == "no crossing observed on the grid"


def test_many_updates_are_read_at_once():
    found = sampled_crossing(GRID, [[0.0, 1.0, -1.0, 0.0], [0.0, 1.0, 1.0, 1.0], [0.0, -1.0, 1.0, 1.0]])
    assert np.array_equal(found.lower, [0.25, np.nan, 0.0], equal_nan=True)
    assert np.array_equal(found.upper, [0.5, np.nan, 0.25], equal_nan=True)
    assert found.observed.tolist() == [True, False, True]
    assert str(found) == "2 of 3 updates have an observed crossing"


def test_a_single_crossing_reads_as_a_sentence():
    assert str(sampled_crossing(GRID, [0.0, 1.0, -1.0, 0.0])) == "the gain turns negative in [0.25, 0.5)"


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
    with refuses("numbers of updates differ (root (3,), crossing (2,)): give the same updates in each"):
        found.contains([0.1, 0.2, 0.3])
    with refuses("root has dtype <U3: give real numbers"):
        found.contains("far")
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
