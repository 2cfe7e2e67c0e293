import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from loopscope.errors import LoopscopeError
from loopscope.path import endpoint_prediction, predict, predicted_scale, quadratic_root, quadratic_value

TINY = 5e-324
HUGE = sys.float_info.max
numbers = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=True)
moderate = st.floats(-1e3, 1e3, allow_subnormal=False)


def exact_smallest_maximiser(A: float, Q: float) -> Fraction:
    """By candidates in rational arithmetic: the ends and the vertex, largest value, then smallest scale."""
    A, Q = Fraction(A), Fraction(Q)
    candidates = [Fraction(0), Fraction(1)]
    if Q != 0 and 0 < -A / (2 * Q) < 1:
        candidates.append(-A / (2 * Q))
    best = max(A * a + Q * a * a for a in candidates)
    return min(a for a in candidates if A * a + Q * a * a == best)


@given(numbers, numbers)
def test_the_scale_is_the_exact_smallest_maximiser_rounded(slope, quadratic):
    exact = exact_smallest_maximiser(slope, quadratic)
    found = predicted_scale(slope, quadratic)
    assert abs(Fraction(found) - exact) <= max(Fraction(np.spacing(float(exact))), Fraction(TINY))
    assert 0 <= found <= 1
    if exact in (0, 1):
        assert found == exact


@pytest.mark.parametrize(
    ("slope", "quadratic", "expected"),
    [
        (0.0, 0.0, 0.0),
        (-0.0, 0.0, 0.0),
        (1.0, 0.0, 1.0),
        (TINY, 0.0, 1.0),
        (TINY, -0.0, 1.0),
        (-1.0, 0.0, 0.0),
        (0.0, 1.0, 1.0),
        (0.0, -1.0, 0.0),
        (-1.0, 1.0, 0.0),
        (-1.0, 1.0 + 2**-52, 1.0),
        (1.0, 1.0, 1.0),
        (-2.0, 1.0, 0.0),
        (2.0, -1.0, 1.0),
        (3.0, -1.0, 1.0),
        (1.0, -1.0, 0.5),
        (-1.0, -1.0, 0.0),
        (HUGE, -HUGE, 0.5),
        (HUGE, -TINY, 1.0),
        (TINY, -TINY, 0.5),
        (2 * TINY, -TINY, 1.0),
        (TINY, -HUGE, 0.0),
        (-HUGE, -HUGE, 0.0),
        (HUGE, HUGE, 1.0),
        (-HUGE, HUGE, 0.0),
    ],
)
def test_every_sign_tie_and_extreme_has_its_scale(slope, quadratic, expected):
    found = predicted_scale(slope, quadratic)
    assert type(found) is float
    assert found == expected


@given(moderate, moderate)
def test_no_scale_does_better_than_the_predicted_one(slope, quadratic):
    scales = np.linspace(0, 1, 101)
    best = quadratic_value(predicted_scale(slope, quadratic), slope, quadratic)
    tolerance = 1e-12 * (abs(slope) + abs(quadratic))
    assert quadratic_value(scales, slope, quadratic).max() <= best + tolerance


def test_the_scale_agrees_with_a_general_optimiser():
    rng = np.random.default_rng(7)
    slope, quadratic = rng.normal(size=200), -np.abs(rng.normal(size=200)) - 0.01
    found = predicted_scale(slope, quadratic)
    for a, A, Q in zip(found, slope, quadratic, strict=True):
        numeric = minimize_scalar(lambda x, A=A, Q=Q: -(A * x + Q * x * x), bounds=(0, 1), method="bounded")
        assert abs(a - numeric.x) < 1e-4


def test_many_updates_are_predicted_at_once():
    slope, quadratic = np.array([[0.5, 1.0], [-1.0, 2.0]]), np.array([[-1.0, 0.0], [-1.0, -4.0]])
    assert predicted_scale(slope, quadratic).tolist() == [[0.25, 1.0], [0.0, 0.25]]
    assert predicted_scale(1.0, [-1.0, -2.0]).tolist() == [0.5, 0.25]
    assert predicted_scale([1.0, 4.0], -2.0).tolist() == [0.25, 1.0]


def test_values_are_those_of_the_polynomial():
    assert quadratic_value(0.5, 2.0, 4.0) == 2.0
    assert type(quadratic_value(0.5, 2.0, 4.0)) is float
    table = quadratic_value([0.0, 0.5, 1.0], np.array([[1.0], [2.0]]), np.array([[4.0], [-2.0]]))
    assert table.tolist() == [[0.0, 1.5, 5.0], [0.0, 0.5, 0.0]]


@given(moderate, moderate, st.floats(0, 1))
def test_values_agree_with_rational_arithmetic(slope, quadratic, alpha):
    exact = Fraction(slope) * Fraction(alpha) + Fraction(quadratic) * Fraction(alpha) ** 2
    assert abs(Fraction(quadratic_value(alpha, slope, quadratic)) - exact) <= 1e-15 * (
        abs(Fraction(slope)) + abs(Fraction(quadratic))
    )


def test_the_endpoint_prediction_is_the_sum():
    assert endpoint_prediction(0.25, -1.0) == -0.75
    assert endpoint_prediction([1.0, 2.0], [3.0, -4.0]).tolist() == [4.0, -2.0]


@given(numbers, numbers)
def test_the_root_is_minus_slope_over_quadratic_where_defined(slope, quadratic):
    root = quadratic_root(slope, quadratic)
    if slope > 0 > quadratic:
        exact = Fraction(slope) / -Fraction(quadratic)
        if exact > Fraction(HUGE):
            assert root == np.inf
        else:
            assert abs(Fraction(root) - exact) <= max(Fraction(np.spacing(float(exact))), Fraction(TINY))
    else:
        assert np.isnan(root)


@pytest.mark.parametrize(("slope", "quadratic"), [(0.0, -1.0), (1.0, 0.0), (1.0, -0.0), (0.0, 0.0), (-1.0, 1.0)])
def test_there_is_no_root_without_rise_and_fall(slope, quadratic):
    assert np.isnan(quadratic_root(slope, quadratic))


def test_the_root_lies_before_one_exactly_when_the_endpoint_is_predicted_negative():
    rng = np.random.default_rng(8)
    slope, quadratic = rng.uniform(0.01, 1, 1000), -rng.uniform(0.01, 1, 1000)
    assert ((quadratic_root(slope, quadratic) < 1) == (endpoint_prediction(slope, quadratic) < 0)).all()


def test_the_root_is_twice_the_unclipped_scale_and_may_exceed_one():
    assert quadratic_root(3.0, -1.0) == 3.0
    assert quadratic_root([3.0, 1.0], -4.0).tolist() == [0.75, 0.25]


def test_predict_gathers_all_three():
    found = predict([0.5, 1.0], [-1.0, 1.0])
    assert found.gain.tolist() == [-0.5, 2.0]
    assert found.alpha.tolist() == [0.25, 1.0]
    assert np.array_equal(found.root, [0.5, np.nan], equal_nan=True)


def test_a_zero_displacement_predicts_nothing():
    found = predict(0.0, 0.0)
    assert (found.gain, found.alpha) == (0.0, 0.0)
    assert np.isnan(found.root)


@pytest.mark.parametrize("function", [predict, predicted_scale, quadratic_root, endpoint_prediction])
def test_bad_coefficients_are_refused(refuses, function):
    with refuses("slope is NaN or infinite: leave such updates out"):
        function(np.nan, 1.0)
    with refuses("quadratic is NaN or infinite: leave such updates out"):
        function(1.0, np.inf)
    with refuses("shapes differ (slope (2,), quadratic (3,)): give one entry per update in each"):
        function([1.0, 2.0], [1.0, 2.0, 3.0])


def test_bad_arguments_of_the_value_are_refused(refuses):
    with refuses("alpha is NaN or infinite: leave such updates out"):
        quadratic_value(np.nan, 1.0, 1.0)
    with refuses("slope is NaN or infinite: leave such updates out"):
        quadratic_value(1.0, np.nan, 1.0)
    with refuses("quadratic is NaN or infinite: leave such updates out"):
        quadratic_value(1.0, 1.0, np.nan)
    with refuses(
        "alpha (3,), slope (2,) and quadratic (2,) do not broadcast: "
        "give slope[:, None] and quadratic[:, None] to evaluate many updates on a grid"
    ):
        quadratic_value([0.0, 0.5, 1.0], [1.0, 2.0], [1.0, 2.0])


@pytest.mark.parametrize(("alpha", "slope", "quadratic"), [((2,), (3,), ()), ((2,), (), (3,)), ((), (2,), (3,))])
def test_every_pair_of_shapes_must_broadcast(alpha, slope, quadratic):
    with pytest.raises(LoopscopeError, match="do not broadcast"):
        quadratic_value(np.zeros(alpha), np.zeros(slope), np.zeros(quadratic))


def test_predictions_beyond_float64_are_refused(refuses):
    with refuses("q(alpha) exceeds float64: rescale the utility"):
        endpoint_prediction(HUGE, HUGE)


def test_extreme_coefficients_raise_no_floating_point_error():
    with np.errstate(all="raise"):
        predicted_scale([HUGE, TINY, TINY, HUGE], [-HUGE, -HUGE, -3.0, -TINY])
        quadratic_root([HUGE, TINY], [-TINY, -HUGE])
