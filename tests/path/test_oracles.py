import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loopscope.path import oracles, uniform_grid

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


def test_bad_arguments_are_refused(refuses):
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
