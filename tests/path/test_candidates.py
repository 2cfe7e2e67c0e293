import numpy as np
import pytest

from loopscope.path._candidates import (
    Samples,
    ceilings,
    cells_to_split,
    curvature_of,
    merged,
    midpoints,
    peak_brackets,
    smallest_maximiser,
)


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
    line = "curvature_bound of update 1 is smaller than a sampled change of slope: give a bound valid on [0, 1]"
    with refuses(line):
        curvature_of(samples, np.array([1.0, 2.99999]))
    assert curvature_of(samples, np.array([1.0, 3.0 - 2e-6])).shape == (2,)


def test_the_rounding_of_slopes_is_relative_to_each_update_and_cell(refuses):
    alpha = np.array([[0.0, 0.01, 1.0]] * 2)
    slope = np.array([[1e6, 1e6, 1e6], [1.0, 1.0 + 0.9e-6, 1.0]])
    samples = Samples(alpha, np.zeros((2, 3)), slope)
    assert curvature_of(samples, np.zeros(2)).tolist() == [0.0, 0.0]
    worse = samples._replace(slope=slope + np.array([[0.0, 0.0, 0.0], [0.0, 0.2e-6, 0.0]]))
    with refuses("curvature_bound of update 1 is smaller than a sampled change of slope: give a bound valid on [0, 1]"):
        curvature_of(worse, np.zeros(2))


def test_cells_with_the_highest_ceiling_are_split_first():
    samples = Samples(
        np.array([[0.0, 0.25, 0.5, 1.0]]), np.array([[0.0, 5.0, 1.0, 2.0]]), np.array([[0.0, 0.0, 0.0, 0.0]])
    )
    # With K = 0 the ceilings are the larger ends: 5, 5, 2.
    assert cells_to_split(samples, np.zeros(1), 3).tolist() == [[0, 1, 2]]
    assert cells_to_split(samples, np.zeros(1), 1).tolist() == [[0]]


def test_equal_ceilings_split_the_wider_cell_first():
    samples = Samples(np.array([[0.0, 0.25, 0.5, 1.0]]), np.zeros((1, 4)), np.zeros((1, 4)))
    assert cells_to_split(samples, np.zeros(1), 3).tolist() == [[2, 0, 1]]


def test_the_narrowest_cells_are_left_alone():
    alpha = np.array([[0.0, 0.5, 0.5 + 0.9e-6, 1.0]])
    samples = Samples(alpha, np.array([[0.0, 9.0, 9.0, 0.0]]), np.zeros((1, 4)))
    assert cells_to_split(samples, np.zeros(1), 3)[0, -1] == 1
    peak = Samples(np.array([[0.0, 0.5, 0.5 + 1.1e-6, 1.0]]), np.array([[0.0, 8.0, 9.0, 0.0]]), np.zeros((1, 4)))
    assert cells_to_split(peak, np.zeros(1), 3).tolist() == [[2, 1, 0]]


def test_midpoints_lie_in_the_middle_of_the_chosen_cells():
    samples = Samples(np.array([[0.0, 0.5, 1.0], [0.0, 0.25, 1.0]]), np.zeros((2, 3)), np.zeros((2, 3)))
    assert midpoints(samples, np.array([[1, 0], [0, 1]])).tolist() == [[0.75, 0.25], [0.125, 0.625]]


def test_merged_samples_keep_value_and_slope_with_their_location():
    first = Samples(np.array([[0.0, 1.0]]), np.array([[10.0, 11.0]]), np.array([[20.0, 21.0]]))
    second = Samples(np.array([[0.75, 0.25]]), np.array([[12.0, 13.0]]), np.array([[22.0, 23.0]]))
    both = merged(first, second)
    assert both.alpha.tolist() == [[0.0, 0.25, 0.75, 1.0]]
    assert both.value.tolist() == [[10.0, 13.0, 12.0, 11.0]]
    assert both.slope.tolist() == [[20.0, 23.0, 22.0, 21.0]]


def test_peaks_are_cells_that_stop_rising():
    samples = Samples(
        np.array([[0.0, 0.5, 1.0], [0.0, 0.5, 1.0]]),
        np.zeros((2, 3)),
        np.array([[1.0, 0.0, -1.0], [-1.0, 2.0, 3.0]]),
    )
    found = peak_brackets(samples)
    assert found.rows.tolist() == [0]
    assert (found.lower.tolist(), found.upper.tolist()) == ([0.0], [0.5])
    assert (found.at_lower.tolist(), found.at_upper.tolist()) == ([1.0], [0.0])
    later = peak_brackets(samples._replace(slope=np.array([[0.0, 1.0, -1.0], [1.0, 1.0, -1.0]])))
    assert later.rows.tolist() == [0, 1]
    assert later.lower.tolist() == [0.5, 0.5]


def test_equal_values_choose_the_smaller_scale():
    alpha, value = smallest_maximiser(
        np.array([1, 0, 0, 1, 0]), np.array([0.9, 0.8, 0.2, 0.1, 0.5]), np.array([3.0, 7.0, 7.0, 2.0, 6.0])
    )
    assert alpha.tolist() == [0.2, 0.9]
    assert value.tolist() == [7.0, 3.0]
