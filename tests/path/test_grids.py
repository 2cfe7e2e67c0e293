from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopscope.path import grid_optimum, grid_regret, nearest_action, uniform_grid

TWENTIETHS = uniform_grid(21)


def test_grid_points_are_the_decimals_themselves():
    assert TWENTIETHS.tolist() == [float(Decimal(k) / 20) for k in range(21)]
    assert uniform_grid().size == 21
    assert uniform_grid(2).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    "grid", [TWENTIETHS, np.linspace(0, 1, 21), np.arange(21) * 0.05], ids=["k/20", "linspace", "0.05k"]
)
def test_every_decimal_midpoint_goes_to_the_smaller_point(grid):
    """0.025, 0.075, ..., 0.975, written as decimals and as sums, for three roundings of the grid."""
    grid, offsets = np.where(np.arange(21) == 20, 1.0, grid), np.arange(20)
    decimals = [float(Decimal(2 * k + 1) / 40) for k in range(20)]
    for scales in (decimals, 0.05 * offsets + 0.025, (offsets + 0.5) * 0.05):
        assert nearest_action(grid, scales).index.tolist() == offsets.tolist()


@given(st.integers(0, 20_000))
def test_other_decimals_go_to_the_nearest_point(number):
    """By exact decimal arithmetic, ties toward the smaller point."""
    scale = Fraction(number, 20_000)
    expected = min(range(21), key=lambda k: (abs(scale - Fraction(k, 20)), k))
    assert nearest_action(TWENTIETHS, float(scale)).index == expected


@given(st.lists(st.floats(0.001, 1.0), min_size=1, max_size=8), st.floats(0, 1))
def test_the_nearest_point_of_any_grid_is_found(gaps, scale):
    grid = np.concatenate([[0.0], np.cumsum(gaps) / np.sum(gaps)])
    grid[-1] = 1.0
    found = nearest_action(grid, scale)
    assert abs(found.alpha - scale) <= np.abs(grid - scale).min() + 2.0**-49
    assert grid[found.index] == found.alpha


def test_points_just_beyond_a_midpoint_go_up():
    assert nearest_action([0.0, 0.5, 1.0], 0.25 + 2.0**-51).index == 0
    assert nearest_action([0.0, 0.5, 1.0], 0.25 + 2.0**-50).index == 0
    assert nearest_action([0.0, 0.5, 1.0], 0.25 + 2.0**-48).index == 1
    assert nearest_action([0.0, 0.5, 1.0], 0.75).index == 1


def test_the_optimum_is_the_smallest_maximiser():
    assert grid_optimum([0.0, 0.5, 1.0], [0.0, 2.0, 2.0]) == (0.5, 1, 2.0)
    assert grid_optimum([0.0, 0.5, 1.0], [0.0, 0.0, 0.0]) == (0.0, 0, 0.0)
    assert grid_optimum([0.0, 0.5, 1.0], [0.0, -1.0, 3.0]) == (1.0, 2, 3.0)


def test_regret_is_measured_at_the_nearest_action():
    values = [[0.0, 1.0, 0.25], [0.0, -1.0, -0.5]]
    assert grid_regret([0.0, 0.5, 1.0], values, [0.8, 0.3]).tolist() == [0.75, 1.0]
    assert grid_regret([0.0, 0.5, 1.0], values, 0.5).tolist() == [0.0, 1.0]
    assert grid_regret([0.0, 0.5, 1.0], values[0], [0.0, 0.5, 1.0]).tolist() == [1.0, 0.0, 0.75]
    assert grid_regret([0.0, 0.5, 1.0], values[0], 0.75) == 0.0


def test_regret_is_never_negative_and_vanishes_at_the_optimum(paths):
    values = paths.on(TWENTIETHS)
    assert (grid_regret(TWENTIETHS, values, grid_optimum(TWENTIETHS, values).alpha) == 0).all()
    assert (grid_regret(TWENTIETHS, values, np.full(paths.count, 0.4)) >= 0).all()
