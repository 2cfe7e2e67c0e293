import pytest

from loopscope.studies.tables.interventions import contraction


def test_hand_computed_row(hand, row_of):
    row = row_of(contraction(hand))
    # φ(1/4): 0.0625 for question 0; 0.25·0.75 - 0.0625 - 0.125/64 for question 7.
    assert (row.recovered, row.failures, row.recovered_beyond_margin) == (2, 2, 2)
    assert row.recovery.value == 1.0
    assert row.mean_gain.value == pytest.approx((0.0625 + 0.1875 - 0.0625 - 0.125 / 64) / 2)


def test_unrecovered_failures_stay_in_the_mean(records, synthetic):
    # α = 1/4 is too far for the second: its gain ends at 0.1.
    paths = synthetic.Paths.of([0.5, 0.1, 0.5], [-1.0, -1.0, 0.0])
    (row,) = contraction(records(synthetic.Task("sums", {4: paths}))).rows
    assert (row.recovered, row.failures) == (1, 2)
    assert row.recovery.value == 0.5
    assert row.mean_gain.value == pytest.approx((0.0625 + 0.025 - 0.0625) / 2)


def test_a_recovery_within_the_margin_is_told_apart(records, synthetic):
    paths = synthetic.Paths.of([1e-4], [-2e-4])
    (row,) = contraction(records(synthetic.Task("sums", {4: paths}))).rows
    assert (row.recovered, row.recovered_beyond_margin) == (1, 0)


def test_no_failures_print_a_dash(awkward):
    result = contraction(awkward["no failures"])
    assert (result.rows[0].failures, result.rows[0].recovery.value) == (0, None)
    line = next(line for line in result.to_text().splitlines() if "sums" in line)
    assert "0/0" in line
    assert line.count("—") == 2
