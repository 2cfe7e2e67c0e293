import numpy as np
import pytest

from loopscope.path import SAFE_FRACTION, beneficial_lower_bound, beneficial_range, safe_scale


def test_the_lower_bound_is_the_parabola():
    assert beneficial_lower_bound(0.5, 1.0, 4.0) == 0.0
    assert beneficial_lower_bound([0.0, 0.25, 1.0], 1.0, 4.0).tolist() == [0.0, 0.125, -1.0]
    assert beneficial_lower_bound(1.0, [-1.0, 2.0], [1.0, 0.0]).tolist() == [-1.5, 2.0]


def test_the_lower_bound_covers_every_path(paths, rounding):
    lowest, _ = paths.extremes_of_curvature()
    L_D = np.maximum(-lowest, 0.0)
    scales = np.linspace(0, 1, 51)
    gains = paths.on(scales)
    for alpha, gain in zip(scales, gains.T, strict=True):
        bound = beneficial_lower_bound(np.full(paths.count, alpha), paths.slope, L_D)
        assert (gain >= bound - rounding * (1 + np.abs(bound))).all()


def test_a_parabola_attains_the_lower_bound():
    alpha = np.linspace(0, 1, 11)
    assert np.allclose(beneficial_lower_bound(alpha, 0.75, 3.0), 0.75 * alpha - 1.5 * alpha**2, rtol=0, atol=1e-15)


def test_the_range_ends_where_the_parabola_does():
    found = beneficial_range([0.25, 1.0, 0.5, 0.2, -1.0, 0.0], [1.0, 1.0, 1.0, 0.0, 1.0, 0.0])
    assert np.array_equal(found.end, [0.5, 1.0, 1.0, 1.0, np.nan, np.nan], equal_nan=True)
    assert found.closed.tolist() == [False, True, False, True, False, False]


def test_one_update_has_a_plain_range():
    found = beneficial_range(0.25, 2.0)
    assert (type(found.end), type(found.closed)) == (float, bool)
    assert found == (0.25, False)


def test_every_scale_in_the_range_helps(paths):
    lowest, _ = paths.extremes_of_curvature()
    found = beneficial_range(paths.slope, np.maximum(-lowest, 0.0))
    helped = paths.slope > 0
    for share in (1e-3, 0.1, 0.5, 0.9, 0.999):
        scales = np.where(helped, share * found.end, 0.0)
        assert (paths.at(scales)[helped] > 0).all()
    assert (paths.gain[found.closed] > 0).all()


def test_the_safe_scale_is_nine_tenths_of_the_range_and_at_most_one():
    assert SAFE_FRACTION == 0.9
    assert safe_scale(0.25, 1.0) == 0.9 * 0.5
    assert safe_scale(100.0, 1.0) == 1.0
    assert safe_scale(0.5, 0.0) == 1.0
    assert safe_scale(5.0 / 9, 1.0) == 1.0
    assert np.isnan(safe_scale(0.0, 1.0))
    assert np.isnan(safe_scale(-1.0, 0.0))
    assert safe_scale(0.25, 1.0, fraction=0.5) == 0.25
    assert safe_scale([0.25, 0.5], 2.0).tolist() == [0.225, 0.45]
    assert safe_scale(0.5, [2.0, 4.0]).tolist() == [0.45, 0.225]


def test_safe_scales_gain_at_least_their_bound(paths, rounding):
    lowest, _ = paths.extremes_of_curvature()
    helped = paths.slope > 0
    L_D = np.maximum(-lowest, 0.0)
    alpha = np.where(helped, safe_scale(paths.slope, L_D), 0.0)
    gains = paths.at(alpha)
    assert (gains[helped] > 0).all()
    assert (gains >= beneficial_lower_bound(alpha, paths.slope, L_D) - rounding).all()


def test_extremes_stay_in_range():
    tiny, huge = 5e-324, 1.7e308
    with np.errstate(all="raise"):
        assert safe_scale(huge, tiny) == 1.0
        assert safe_scale(tiny, huge) == 0.0
        assert beneficial_range(tiny, tiny) == (1.0, True)
        assert beneficial_range(huge, huge) == (1.0, True)
        assert beneficial_range(0.5 * huge, huge) == (1.0, False)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, np.nan])
def test_impossible_fractions_are_refused(refuses, fraction):
    with refuses(f"fraction is {fraction}: give a number between 0 and 1, such as 0.9"):
        safe_scale(1.0, 1.0, fraction=fraction)


def test_negative_curvature_bounds_are_refused(refuses):
    line = "L_D is negative: it bounds a magnitude, give zero or more"
    with refuses(line):
        safe_scale(1.0, -1.0)
    with refuses(line):
        beneficial_range(1.0, -1.0)
    with refuses(line):
        beneficial_lower_bound(0.5, 1.0, -1.0)


def test_bad_arguments_are_refused_by_name(refuses):
    with refuses("alpha lies outside [0, 1]: scales are fractions of the update"):
        beneficial_lower_bound(1.5, 1.0, 1.0)
    with refuses("alpha is NaN or infinite: leave such updates out"):
        beneficial_lower_bound(np.nan, 1.0, 1.0)
    with refuses("slope is NaN or infinite: leave such updates out"):
        beneficial_lower_bound(0.5, np.nan, 1.0)
    with refuses("L_D is NaN or infinite: leave such updates out"):
        beneficial_lower_bound(0.5, 1.0, np.inf)
    for function in (beneficial_range, safe_scale):
        with refuses("slope is NaN or infinite: leave such updates out"):
            function(np.nan, 1.0)
        with refuses("L_D is NaN or infinite: leave such updates out"):
            function(1.0, np.nan)
    with refuses("the lower bound exceeds float64: rescale the utility"):
        beneficial_lower_bound(1.0, -1.7e308, 1.7e308)
