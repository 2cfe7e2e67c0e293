from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from loopscope.path import predicted_scale, search_optimum
from loopscope.path.general_optimum import (
    PAPER_LOCATIONS,
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
    assert found.certified is True
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
    assert np.array_equal(found.regret, found.value - found.predicted_value)
    assert (found.regret >= 0).all()


def test_a_prediction_that_beats_every_location_is_chosen():
    spike = lambda alpha, rows: np.where(np.abs(alpha - 0.3) < 1e-9, 1.0, 0.0)  # noqa: E731
    flat = lambda alpha, rows: np.zeros(alpha.shape)  # noqa: E731
    found = search_optimum(spike, flat, [0.3])
    assert (found.alpha[0], found.value[0], found.regret[0]) == (0.3, 1.0, 0.0)


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
    wave, slope = (lambda a, r: np.sin(12 * a)), (lambda a, r: 12 * np.cos(12 * a))
    found = search_optimum(wave, slope, [1.0, 0.0])
    assert np.abs(found.alpha - np.pi / 24).max() < 1e-12
    assert found.roots.tolist() == [2, 2]
    coarse = search_optimum(wave, slope, [1.0, 0.0], tolerance=1e-3)
    assert coarse.derivative_evaluations < found.derivative_evaluations


def test_it_says_what_it_searched():
    calls = {"value": 0, "derivative": 0}

    def value(alpha, rows):
        calls["value"] += alpha.size
        return np.sin(3 * alpha) + rows

    def derivative(alpha, rows):
        calls["derivative"] += alpha.size
        return 3 * np.cos(3 * alpha)

    found = search_optimum(value, derivative, [0.5, 0.5, 0.5])
    assert found.locations == PAPER_LOCATIONS == 257
    assert found.value_evaluations == calls["value"]
    assert found.derivative_evaluations == calls["derivative"]
    assert found.value_evaluations == 3 * 257 + 3 + 3
    assert found.certified is False
    assert found.widest.tolist() == [1 / 128] * 3
    gap = (found.ceiling - found.value).max()
    assert str(found) == (
        "3 updates searched at 257 locations each, 3 local maxima refined; "
        f"an unseen value exceeds the best candidate by at most {gap:.1e} (estimated)"
    )


def test_a_certified_search_says_so():
    found = search_optimum(lambda a, r: a, lambda a, r: np.ones(a.shape), [1.0], curvature_bound=0.0)
    assert str(found).endswith("(certified)")
    assert found.alpha.tolist() == [1.0]
    assert found.ceiling.tolist() == [1.0]


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
    assert found.value_evaluations == locations + 1 + found.roots.sum()


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
    assert search_optimum(value, derivative, [0.9], curvature_bound=1e9).widest.tolist() == [1 / 256]
    assert search_optimum(value, derivative, [0.9]).widest.tolist() == [1 / 128]


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
    assert found.value.tolist() == found.regret.tolist() == [0.0]
    assert found.widest.tolist() == [1 / 256]
    assert found.roots.tolist() == [0]


def test_a_constant_added_to_the_values_changes_no_choice():
    slope = lambda a, r: 9 * np.cos(9 * a) - a  # noqa: E731
    plain = search_optimum(lambda a, r: np.sin(9 * a) - a**2 / 2, slope, [0.3])
    shifted = search_optimum(lambda a, r: np.sin(9 * a) - a**2 / 2 + 8, slope, [0.3])
    assert plain.alpha == pytest.approx(shifted.alpha, abs=1e-9)
    assert plain.regret == pytest.approx(shifted.regret, abs=1e-12)


def test_no_updates_take_no_evaluations():
    found = search_optimum(lambda a, r: a, lambda a, r: a, [])
    assert found.alpha.shape == (0,)
    assert found.value_evaluations == found.derivative_evaluations == 0
    assert str(found).startswith("0 updates searched")


def test_bad_arguments_are_refused(refuses):
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
    with refuses("curvature_bound of update 0 is smaller than a sampled change of slope: give a bound valid on [0, 1]"):
        search_optimum(lambda a, r: a**2, lambda a, r: 2 * a, [0.5], curvature_bound=1.0)
    with refuses("value returned shape () for 129 scales: return one number per scale"):
        search_optimum(lambda a, r: 0.0, one, [0.5])
    with refuses("derivative returned shape () for 129 scales: return one number per scale"):
        search_optimum(line, lambda a, r: 0.0, [0.5])
