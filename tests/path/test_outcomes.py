import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopscope.path import (
    Outcome,
    classify,
    exceeds_margin,
    oracles,
    predicted_scale,
    quadratic_root,
    quadratic_value,
    uniform_grid,
)

numbers = st.floats(allow_nan=False, allow_infinity=False)


CLASSES = {
    Outcome.PROGRESSING: [(1.0, 1.0), (-1.0, 5e-324), (0.0, 1.0)],
    Outcome.NEUTRAL: [(1.0, 0.0), (-1.0, -0.0), (0.0, 0.0)],
    Outcome.DIRECTIONAL_FAILURE: [(0.0, -1.0), (-0.0, -5e-324), (-1.0, -1.0)],
    Outcome.FINITE_STEP_FAILURE: [(5e-324, -5e-324), (1.0, -1.0)],
}


@pytest.mark.parametrize("expected", CLASSES)
def test_each_sign_pair_has_its_class(expected):
    for slope, gain in CLASSES[expected]:
        assert classify(slope, gain) is expected, (slope, gain)


def test_the_margin_is_strict_on_both_sides():
    assert exceeds_margin(1.1e-4, -1.1e-4) is True
    assert exceeds_margin(1e-4, -1.0) is False
    assert exceeds_margin(1.0, -1e-4) is False
    assert exceeds_margin(1.0, 1.0) is False
    assert exceeds_margin(-1.0, -1.0) is False
    assert exceeds_margin([1.0, 0.4], [-1.0, -1.0], margin=0.5).tolist() == [True, False]


ACTIONS = uniform_grid(5)


def test_each_field_of_one_update():
    found = oracles(ACTIONS, [1.0, 3.0, 2.0, 3.0, 1.5])
    assert found == (1.5, 3.0, 0.25, 1.5, 1.5, True)
    assert type(found.halt) is float
    assert type(found.interior) is bool


def test_equalling_an_endpoint_is_no_strict_advantage():
    assert oracles([0.0, 0.5, 1.0], [1.0, 1.0, 0.0]).interior is False
    assert oracles([0.0, 0.5, 1.0], [0.0, 1.0, 1.0]).interior is False
    assert oracles([0.0, 0.5, 1.0], [0.0, 1.0, 1.0]).action == 0.5


utilities = st.lists(st.integers(-5, 5), min_size=2, max_size=9)


@given(utilities)
def test_the_step_oracle_is_at_least_the_endpoint_oracle(values):
    found = oracles(uniform_grid(len(values)), values)
    assert found.halt == max(values[0], values[-1])
    assert found.step == max(values)
    assert found.advantage == max(values) - max(values[0], values[-1]) >= 0
    assert found.interior == any(value > found.halt for value in values[1:-1])


TINY = 5e-324
HUGE = sys.float_info.max
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


SCALES = {
    0.0: [
        (0.0, 0.0), (-0.0, 0.0), (-1.0, 0.0), (0.0, -1.0), (-1.0, 1.0), (-2.0, 1.0), (-1.0, -1.0), (TINY, -HUGE),
        (-HUGE, -HUGE), (-HUGE, HUGE),
    ],
    0.5: [(1.0, -1.0), (HUGE, -HUGE), (TINY, -TINY)],
    1.0: [
        (1.0, 0.0), (TINY, 0.0), (TINY, -0.0), (0.0, 1.0), (-1.0, 1.0 + 2**-52), (1.0, 1.0), (2.0, -1.0), (3.0, -1.0),
        (HUGE, -TINY), (2 * TINY, -TINY), (HUGE, HUGE),
    ],
}  # fmt: skip


@pytest.mark.parametrize("expected", SCALES)
def test_every_sign_tie_and_extreme_has_its_scale(expected):
    for slope, quadratic in SCALES[expected]:
        found = predicted_scale(slope, quadratic)
        assert type(found) is float
        assert found == expected, (slope, quadratic)


@given(moderate, moderate, st.floats(0, 1))
def test_values_agree_with_rational_arithmetic(slope, quadratic, alpha):
    exact = Fraction(slope) * Fraction(alpha) + Fraction(quadratic) * Fraction(alpha) ** 2
    assert abs(Fraction(quadratic_value(alpha, slope, quadratic)) - exact) <= 1e-15 * (
        abs(Fraction(slope)) + abs(Fraction(quadratic))
    )


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
