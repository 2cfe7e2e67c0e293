import numpy as np
import pytest

from loopscope.stats import Bootstrap
from loopscope.studies.tables.tokens import tokens


@pytest.fixture
def audited(records, synthetic):
    """Two questions with one and three tokens; the last token is not taken by the exit policy."""
    paths = synthetic.Paths.of([0.5, 0.5], [-1.0, -1.0])
    columns = {
        "row": np.array([0, 1, 1, 1]),
        "slope": np.array([0.5, 0.5, -0.5, 0.5]),
        "quadratic": np.array([-1.0, -0.25, 0.0, -1.0]),
        "gain": np.array([-0.5, 0.25, -0.5, -0.5]),
        "quarter_gain": np.array([0.0625, 0.1, -0.1, 0.0625]),
        "quadratic_gain": np.array([-0.01, 0.25, 0.0, 0.0625]),
        "continues": np.array([True, True, True, False]),
    }
    return records(synthetic.Task("sums", {1: paths}, tokens={1: columns}), tokens=True)


def test_hand_computed_row(audited):
    (row,) = tokens(audited).rows
    assert (row.questions, row.positions, row.failures, row.beyond_margin) == (2, 3, 1, 1)
    assert row.failure_rate.value == pytest.approx(1 / 3)
    assert (row.recovered_quarter, row.quarter_rate.value) == (1, 1.0)
    assert (row.recovered_quadratic, row.quadratic_rate.value) == (0, 0.0)
    assert row.full.value == pytest.approx(-0.25)
    assert row.quarter.value == pytest.approx(0.0625 / 3)
    assert row.over_full.value == pytest.approx((0.49 + 0 + 0.5) / 3)
    assert row.over_quarter.value == pytest.approx((-0.0725 + 0.15 + 0.1) / 3)


def test_intervals_resample_questions_with_all_their_tokens(audited):
    (row,) = tokens(audited, Bootstrap(resamples=500)).rows
    # Resamples are {0,0}, {0,1}, {1,1}: means of ΔU -0.5, -0.25, -0.125, and nothing in between.
    assert (row.full.interval.low, row.full.interval.high) == (-0.5, -0.125)
    # Without question 0 there is no failure to recover.
    assert row.quarter_rate.interval.undefined == pytest.approx(125, abs=40)


def test_runs_without_a_gate_use_every_token(records, synthetic):
    paths = synthetic.Paths.of([0.5], [-1.0])
    columns = {name: np.array([0.5, 0.5]) for name in ("slope", "gain", "quarter_gain", "quadratic_gain")}
    columns |= {"row": np.array([0, 0]), "quadratic": np.array([0.0, 0.0])}
    (row,) = tokens(records(synthetic.Task("sums", {1: paths}, tokens={1: columns}), tokens=True)).rows
    assert (row.positions, row.failures, row.quarter_rate.value) == (2, 0, None)


def test_runs_without_token_rows_say_how_to_get_them(hand):
    result = tokens(hand)
    assert result.rows == ()
    assert "--tokens" in result.notes[-1]
