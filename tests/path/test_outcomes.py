from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopscope.path import CONTRACTION, Outcome, classify, exceeds_margin, oracles, uniform_grid

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


def test_the_quarter_step_is_the_papers_contraction():
    assert CONTRACTION == 0.25


ACTIONS = uniform_grid(5)


def test_each_field_of_one_update():
    found = oracles(ACTIONS, [1.0, 3.0, 2.0, 3.0, 1.5])
    assert found == (1.5, 3.0, 0.25, 1.5, 1.5, True)
    assert type(found.halt) is float
    assert type(found.interior) is bool


def test_a_falling_update_halts():
    assert oracles(ACTIONS, [0.0, -1.0, -2.0, -3.0, -4.0]) == (0.0, 0.0, 0.0, 0.0, 4.0, False)


def test_a_rising_update_takes_the_full_step():
    assert oracles(ACTIONS, [0.0, 1.0, 2.0, 3.0, 4.0]) == (4.0, 4.0, 1.0, 0.0, 0.0, False)


def test_equalling_an_endpoint_is_no_strict_advantage():
    assert oracles([0.0, 0.5, 1.0], [1.0, 1.0, 0.0]).interior is False
    assert oracles([0.0, 0.5, 1.0], [0.0, 1.0, 1.0]).interior is False
    assert oracles([0.0, 0.5, 1.0], [0.0, 1.0, 1.0]).action == 0.5


def test_two_actions_leave_no_interior():
    assert oracles([0.0, 1.0], [[0.0, 1.0], [1.0, 0.0]]).interior.tolist() == [False, False]


def test_many_updates():
    found = oracles([0.0, 0.5, 1.0], [[0.0, 2.0, 1.0], [0.0, -1.0, -1.0]])
    assert found.halt.tolist() == [1.0, 0.0]
    assert found.step.tolist() == [2.0, 0.0]
    assert found.action.tolist() == [0.5, 0.0]
    assert found.advantage.tolist() == [1.0, 0.0]
    assert found.gain_over_full.tolist() == [1.0, 1.0]
    assert found.interior.tolist() == [True, False]


utilities = st.lists(st.integers(-5, 5), min_size=2, max_size=9)


@given(utilities)
def test_the_step_oracle_is_at_least_the_endpoint_oracle(values):
    found = oracles(uniform_grid(len(values)), values)
    assert found.halt == max(values[0], values[-1])
    assert found.step == max(values)
    assert found.advantage == max(values) - max(values[0], values[-1]) >= 0
    assert found.interior == any(value > found.halt for value in values[1:-1])


@given(utilities, st.integers(-50, 50))
def test_a_constant_moves_only_the_utilities(values, constant):
    grid = uniform_grid(len(values))
    plain, shifted = oracles(grid, values), oracles(grid, np.add(values, constant))
    assert shifted.halt == plain.halt + constant
    assert shifted.step == plain.step + constant
    assert shifted[2:] == plain[2:]


def test_a_zero_displacement_gains_nothing():
    found = oracles(ACTIONS, np.zeros((3, 5)))
    assert not found.interior.any()
    assert (found.advantage == 0).all()


def test_oracles_bad_arguments_are_refused(refuses):
    with refuses("grid ends at 0.5: it must contain 1, the full update"):
        oracles([0.0, 0.5], [0.0, 0.0])
    with refuses("utilities has shape (2,) for 5 scales: give one entry per scale on the last axis"):
        oracles(ACTIONS, [0.0, 0.0])
    with refuses("utilities is NaN or infinite at index [1]: leave such updates out"):
        oracles([0.0, 1.0], [0.0, np.nan])
    with refuses("the gain over the full update exceeds float64: rescale the utility"):
        oracles([0.0, 1.0], [1.7e308, -1.7e308])
    with refuses("the advantage exceeds float64: rescale the utility"):
        oracles([0.0, 0.5, 1.0], [-1.7e308, 1.7e308, -1.7e308])
