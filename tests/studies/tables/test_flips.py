"""Flips and settling of a trace that can be read off by hand."""

import numpy as np
import pytest

from loopscope.stats import Bootstrap
from loopscope.studies.registry import FIGURES
from loopscope.studies.tables.tokens import flips, settling

# The reference is 1 everywhere. Question 0 has the first two positions, question 1 the other four.
SAID = np.array(
    [
        [1, 1, 1, 1],  # right from the start
        [0, 1, 1, 1],  # corrected in loop 2
        [1, 1, 0, 0],  # spoiled in loop 3
        [0, 2, 2, 1],  # wrong, wrong otherwise, right at last
        [2, 2, 2, 2],  # wrong and settled
        [0, 1, 0, 2],  # right once
    ]
)
COUNTS = np.array([0, 0, 1, 1, 1, 1])


@pytest.fixture
def traced(records, synthetic):
    paths = synthetic.Paths.of([0.5, 0.5], [-1.0, -1.0])
    columns = {name: np.full(6, 0.5) for name in ("slope", "gain", "quarter_gain", "quadratic_gain", "quadratic")}
    return records(synthetic.Task("sums", {3: paths}, tokens={3: {"row": COUNTS, **columns}}, said=SAID), tokens=True)


def test_flips_by_hand(traced):
    rows = flips.table(traced).rows
    assert [row.condition.update for row in rows] == ["1→2", "2→3", "3→4"]
    assert [row["positions"] for row in rows] == [6, 6, 6]
    values = {name: [round(6 * row[name].value) for row in rows] for name in list(rows[0].values)[1:]}
    assert values == {
        "right": [4, 2, 3],
        "flipped": [3, 2, 2],
        "wrong_to_right": [2, 0, 1],
        "right_to_wrong": [0, 2, 0],
        "net": [2, -2, 1],
    }


def test_settling_by_hand(traced):
    (row,) = settling.table(traced).rows
    assert (row["positions"], row["loops"]) == (6, 4)
    assert row["settled"].value == pytest.approx((1 + 2 + 3 + 4 + 1 + 4) / 6)
    assert row["flips"].value == pytest.approx((0 + 1 + 1 + 2 + 0 + 3) / 6)
    assert row["unsettled"].value == pytest.approx(2 / 6)
    shares = [
        row["right_first"],
        row["right_last"],
        row["right_ever"],
        row["wrong_then_right"],
        row["right_then_wrong"],
    ]
    assert [round(6 * share.value) for share in shares] == [2, 3, 5, 2, 2]


def test_intervals_resample_questions_with_all_their_positions(traced):
    (row,) = settling.table(traced, Bootstrap(resamples=500)).rows
    # Resamples are {0,0}, {0,1}, {1,1}: 2 of 2, 3 of 6, 1 of 4 are right at last.
    assert (row["right_last"].interval.low, row["right_last"].interval.high) == (0.25, 1.0)


def test_only_the_right_option_counts(records, synthetic):
    paths = synthetic.Paths.of([0.5], [-1.0])
    task = synthetic.Task("choices", {1: paths}, kind="options", right=np.array([2]), said=np.array([[0, 1]] * 3))
    (row,) = flips.table(records(task)).rows
    assert (row["positions"], row["wrong_to_right"].value, row["wrong_to_right"].interval) == (3, 1.0, None)


@pytest.mark.parametrize("study", [flips, settling])
def test_runs_without_a_trace_say_how_to_get_one(records, synthetic, study):
    task = synthetic.Task("sums", {4: synthetic.Paths.of([0.5], [-1.0])})
    without = records(task, settings={})
    result = study.table(without)
    assert result.rows == ()
    assert "measure with trace=True" in result.notes[-1]
    assert "no run holds a trace" in result.to_text()
    drawn = FIGURES["flips"].figure(without)
    assert drawn.shown == {}
    assert "measure with trace=True" in drawn.caption
