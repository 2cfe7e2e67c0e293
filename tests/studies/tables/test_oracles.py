import pytest

from loopscope.studies.tables.geometry import oracles


def test_hand_computed_row(hand, row_of):
    row = row_of(oracles(hand))
    # Best of five scales against the better end. Question 0: 0.0625 at 1/4 over 0. Question 3: 0.125 at 1/2 over 0.
    # Question 7: the larger of φ(1/4) = 0.125 - 1/512 and φ(1/2) = 0.125 - 1/64, over 0. All others: an end is best.
    seven = 0.125 - 0.125 / 64
    assert (row.n, row.interior, row.beyond_margin) == (8, 3, 3)
    assert row.gain_over_halt.value == pytest.approx((0.0625 + 0.125 + seven) / 8)
    # Over the full step: 0.5625, 0, 0.5, 0.125, 0.25, 0, 0, seven + 0.375.
    assert row.gain_over_full.value == pytest.approx((0.5625 + 0.5 + 0.125 + 0.25 + seven + 0.375) / 8)
    assert row.share.value == pytest.approx(row.gain_over_halt.value / row.gain_over_full.value)


def test_nothing_to_gain_over_the_full_step_has_no_share(awkward):
    row = oracles(awkward["all neutral"]).rows[0]
    assert (row.interior, row.gain_over_halt.value, row.share.value) == (0, 0.0, None)


def test_an_advantage_within_the_margin_is_told_apart(records, synthetic):
    (row,) = oracles(records(synthetic.Task("sums", {4: synthetic.Paths.of([1e-4], [-1e-4])}))).rows
    assert (row.interior, row.beyond_margin) == (1, 0)
