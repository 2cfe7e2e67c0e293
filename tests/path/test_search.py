import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from loopscope.path import predicted_scale, search_optimum
from loopscope.path.search import PAPER_LOCATIONS


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
