"""How the paper chose and checked: selected transitions, response imbalance, the exit gate, labels in FP64."""

import dataclasses

import numpy as np
import pytest

from loopscope.studies.tables.checks import agrees, derivative_checks
from loopscope.studies.tables.depths import option_responses, transition_selection
from loopscope.studies.tables.tokens import gate_agreement


@pytest.fixture
def sweep(records, synthetic):
    def make(means, depths, n=40, spread=0.0):
        rng = np.random.default_rng(0)
        utility = np.array(means) + rng.normal(0, 1, (n, 1)) + spread * rng.normal(0, 1, (n, len(means)))
        task = synthetic.Task("sums", {4: synthetic.Paths.of(np.ones(n), -np.ones(n))}, utility=utility)
        return records(task, depths=depths, level="quick")

    return make


def test_the_earliest_neighbouring_decline_is_selected(sweep):
    # 2→4 is no pair of neighbours; 4→5 falls within the noise of nothing; 6→7 falls most.
    (row,) = transition_selection.table(sweep([-1.0, -3.0, -3.1, -3.0, -3.5, -3.4], (2, 4, 5, 6, 7, 8))).rows
    assert (row["examined"], row["declines"], row["selected"], row["largest"]) == (4, 2, "4→5", "6→7")
    assert row["change"].value == pytest.approx(-0.1)
    assert row["largest_change"].value == pytest.approx(-0.5)


def test_a_fall_within_the_noise_is_not_selected(sweep):
    (row,) = transition_selection.table(sweep([-1.0, -1.001, -1.3], (4, 5, 6), spread=0.05, n=200)).rows
    assert row["selected"] == "5→6"


def test_without_neighbours_there_is_no_row_and_a_reason(sweep):
    records = sweep([-1.0, -2.0], (4, 5))
    (only,) = records.sweeps
    records.__dict__["sweeps"] = (dataclasses.replace(only, depths=(1, 8)),)
    result = transition_selection.table(records)
    assert result.rows == ()
    assert "measure with depths" in result.notes[-1]


def test_the_most_chosen_option_by_depth(records, synthetic):
    chosen = np.array([[0, 1, 2], [1, 1, 2], [1, 1, 2], [0, 3, 2]])
    paths = synthetic.Paths.of(np.ones(4), -np.ones(4))
    right = np.array([1, 1, 2, 0])
    task = synthetic.Task(
        "choices",
        {4: paths},
        kind="options",
        chosen=chosen,
        right=right,
        columns={"correct_option": right},
        utility=np.zeros((4, 3)),
    )
    rows = option_responses.table(records(task, depths=(4, 5, 8), level="quick")).rows
    assert [(row["depth"], row["option"], row["chosen"], row["right"]) for row in rows] == [
        (4, 0, 2, 0.25),
        (5, 1, 3, 0.5),
        (8, 2, 4, 0.25),
    ]
    assert [row["accuracy"].value for row in rows] == [0.5, 0.5, 0.25]
    assert rows[2]["share"].value == 1.0


def test_solutions_have_no_responses(sweep):
    result = option_responses.table(sweep([-1.0, -2.0], (4, 5)))
    assert not result.rows
    assert "option tasks" in result.notes[-1]


def test_coverage_and_agreement_of_the_gate(records, synthetic):
    paths = synthetic.Paths.of([0.5, 0.5], [-1.0, -1.0])
    columns = {name: np.full(4, 0.5) for name in ("slope", "gain", "quarter_gain", "quadratic_gain")}
    columns |= {
        "row": np.array([0, 1, 1, 1]),
        "quadratic": np.zeros(4),
        "exit_depth": np.array([4, 3, 1, 4]),
        "exit_depth_fp64": np.array([4, 3, 1, 3]),
    }
    (row,) = gate_agreement.table(records(synthetic.Task("sums", {1: paths}, tokens={1: columns}), tokens=True)).rows
    assert (row["positions"], row["continuing"], row["coverage"]) == (4, 3, 0.75)
    assert (row["agreeing"], row["earliest"], row["latest"]) == (3, 1, 4)


def test_criterion_of_a_second_q_is_absolute_or_relative():
    q = np.array([1.0, 1.0, 1e-7, 1e-7])
    assert agrees(q, np.array([1.0 + 9e-5, 1.0 + 2e-4, 9e-7, 2e-6])).tolist() == [True, False, True, False]


def test_labels_that_change_in_fp64_are_counted(records, synthetic):
    paths = synthetic.Paths.of([0.5, 0.25, 1e-9], [-1.0, -0.125, -0.5])
    task = synthetic.Task("sums", {4: paths}, columns={"fp64_slope": np.array([0.5, 0.25, -1e-9])})
    (row,) = derivative_checks.table(records(task)).rows
    assert (row["primary_changes"], row["harmful_changes"]) == (1, 0)
