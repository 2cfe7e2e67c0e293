import numpy as np
import pytest

from loopscope.studies.tables.interventions import transitions


@pytest.fixture
def two(records, synthetic):
    """An option task over two transitions."""
    first = synthetic.Paths.of([0.5, 0.5, -0.5, 0.25], [-1.0, -0.25, 0.0, -0.5])
    second = synthetic.Paths.of([0.5, 0.5, 0.5, 0.5], [0.0, 0.0, 0.0, 0.0])
    # The right option is 0; depths 1, 2, 3.
    chosen = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]])
    return records(synthetic.Task("choices", {1: first, 2: second}, kind="options", chosen=chosen))


def test_first_transition_by_hand(two):
    row = transitions.table(two).rows[0]
    # Gains -0.5 (failure), 0.25, -0.5 (directional), -0.25 (failure).
    assert row["failures"] == 2
    assert (row["recovered_quarter"], row["recovered_quadratic"], row["recovered_beyond_margin"]) == (2, 2, 2)
    assert row["full"].value == pytest.approx(-0.25)
    # φ(1/4): 0.0625, 0.109375, -0.125, 0.03125.
    assert row["quarter"].value == pytest.approx(0.078125 / 4)
    # φ(α̂) at 0.25, 1, 0, 0.25.
    assert row["quadratic"].value == pytest.approx((0.0625 + 0.25 + 0 + 0.03125) / 4)
    assert row["over_full"].value == pytest.approx(row["quadratic"].value + 0.25)
    assert (row["sign_slope"].value, row["sign_quadratic"].value) == (0.5, 1.0)
    assert row["failures_quarter"].value == pytest.approx((0.0625 + 0.03125) / 2)


def test_accuracy_at_both_ends(two):
    first, second = transitions.table(two).rows
    assert (first["accuracy_before"].value, first["accuracy_after"].value) == (0.5, 0.5)
    assert (second["accuracy_before"].value, second["accuracy_after"].value) == (0.5, 1.0)


def test_a_transition_without_failures(two):
    row = transitions.table(two).rows[1]
    assert (row["failures"], row["recovered_quarter"], row["failures_quarter"].value) == (0, 0, None)


def test_solutions_are_not_option_tasks(hand):
    assert transitions.table(hand).rows == ()
