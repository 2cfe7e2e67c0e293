import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopscope.path import Outcome, classify, exceeds_margin

numbers = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    ("slope", "gain", "expected"),
    [
        (1.0, 1.0, Outcome.PROGRESSING),
        (-1.0, 5e-324, Outcome.PROGRESSING),
        (0.0, 1.0, Outcome.PROGRESSING),
        (1.0, 0.0, Outcome.NEUTRAL),
        (-1.0, -0.0, Outcome.NEUTRAL),
        (0.0, 0.0, Outcome.NEUTRAL),
        (0.0, -1.0, Outcome.DIRECTIONAL_FAILURE),
        (-0.0, -5e-324, Outcome.DIRECTIONAL_FAILURE),
        (-1.0, -1.0, Outcome.DIRECTIONAL_FAILURE),
        (5e-324, -5e-324, Outcome.FINITE_STEP_FAILURE),
        (1.0, -1.0, Outcome.FINITE_STEP_FAILURE),
    ],
)
def test_each_sign_pair_has_its_class(slope, gain, expected):
    assert classify(slope, gain) is expected


def test_many_updates_give_int8_codes():
    codes = classify([[1.0, 1.0], [-1.0, 0.0]], [[1.0, -1.0], [-1.0, 0.0]])
    assert codes.dtype == np.int8
    assert codes.tolist() == [[0, 3], [2, 1]]


def test_one_slope_serves_many_gains_and_the_reverse():
    assert classify(1.0, [1.0, 0.0, -1.0]).tolist() == [0, 1, 3]
    assert classify([1.0, 0.0, -1.0], -1.0).tolist() == [3, 2, 2]


@given(numbers, numbers)
def test_the_classes_are_those_of_the_definition(slope, gain):
    outcome = classify(slope, gain)
    if gain > 0:
        assert outcome is Outcome.PROGRESSING
    elif gain == 0:
        assert outcome is Outcome.NEUTRAL
    elif slope > 0:
        assert outcome is Outcome.FINITE_STEP_FAILURE
    else:
        assert outcome is Outcome.DIRECTIONAL_FAILURE


def test_a_zero_displacement_is_neutral_everywhere():
    assert (classify(np.zeros(100), np.zeros(100)) == Outcome.NEUTRAL).all()


def test_no_updates_give_no_outcomes():
    assert classify([], []).shape == (0,)


def test_labels_are_words():
    assert [outcome.label for outcome in Outcome] == [
        "progressing",
        "neutral",
        "directional failure",
        "finite-step failure",
    ]
    assert f"{Outcome.FINITE_STEP_FAILURE}" == str(Outcome.FINITE_STEP_FAILURE) == "finite-step failure"


def test_both_failures_are_harmful_and_nothing_else():
    assert [outcome.harmful for outcome in Outcome] == [False, False, True, True]


def test_the_margin_is_strict_on_both_sides():
    assert exceeds_margin(1.1e-4, -1.1e-4) is True
    assert exceeds_margin(1e-4, -1.0) is False
    assert exceeds_margin(1.0, -1e-4) is False
    assert exceeds_margin(1.0, 1.0) is False
    assert exceeds_margin(-1.0, -1.0) is False
    assert exceeds_margin([1.0, 0.4], [-1.0, -1.0], margin=0.5).tolist() == [True, False]


@given(numbers, numbers)
def test_margin_zero_is_the_finite_step_failure_itself(slope, gain):
    assert exceeds_margin(slope, gain, margin=0) == (classify(slope, gain) is Outcome.FINITE_STEP_FAILURE)


@pytest.mark.parametrize("margin", [-1e-9, np.nan, np.inf])
def test_impossible_margins_are_refused(refuses, margin):
    with refuses(f"margin is {margin}: give zero or a positive number"):
        exceeds_margin(1.0, -1.0, margin=margin)


@pytest.mark.parametrize("function", [classify, exceeds_margin])
def test_arguments_are_named_when_refused(refuses, function):
    with refuses("slope is NaN or infinite: leave such updates out"):
        function(np.nan, 1.0)
    with refuses("gain is NaN or infinite: leave such updates out"):
        function(1.0, np.nan)
