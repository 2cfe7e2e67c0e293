import numpy as np
import pytest

from loopscope.studies.tables.mechanism import mechanism


def test_hand_computed_row(hand, row_of):
    row = row_of(mechanism(hand))
    assert (row.finite_step, row.harmful) == (2, 4)
    assert row.mean_gain.value == pytest.approx(-0.75 / 8)
    assert row.share.value == 0.5
    # sign(A) is right for questions 1, 2 and 5; a neutral update has no sign to predict.
    assert row.sign_slope.value == 3 / 8
    assert row.sign_quadratic.value == 1.0
    assert row.mae_slope.value == pytest.approx(4.25 / 8)
    assert row.mae_quadratic.value == pytest.approx(0.125 / 8)
    # Two pairs of ties among the predictions, one among the gains.
    assert row.rank_correlation.value == pytest.approx(np.sqrt(41 / 41.5))


def test_intervals_contain_their_estimates(hand, row_of):
    row = row_of(mechanism(hand))
    for name in ("mean_gain", "share", "sign_slope", "mae_slope", "mae_quadratic"):
        estimate = getattr(row, name)
        assert estimate.interval.low <= estimate.value <= estimate.interval.high


def test_share_interval_recomputes_both_counts(hand, row_of):
    # 8 questions, 4 harmful: a resample has none of them with probability 2^-8, and then no share.
    interval = row_of(mechanism(hand)).share.interval
    assert 0 < interval.undefined / 2000 < 0.02
    assert (interval.low, interval.high) == (0.0, 1.0)


def test_no_harmful_update_has_no_share(awkward):
    row = mechanism(awkward["no failures"]).rows[0]
    assert (row.finite_step, row.harmful, row.share.value) == (0, 0, None)


def test_all_neutral_updates_have_a_gain_of_zero_and_no_rank(awkward):
    row = mechanism(awkward["all neutral"]).rows[0]
    assert (row.mean_gain.value, row.harmful, row.share.value, row.rank_correlation.value) == (0.0, 0, None, None)
    # A = ΔU = 0: the sign is predicted.
    assert row.sign_slope.value == 1.0


def test_one_row_for_every_run_task_and_transition(lively, quick):
    rows = mechanism(lively_records(lively), quick).rows
    assert len(rows) == 16
    assert {(row.condition.task, row.condition.transition) for row in rows} == {
        (task, t) for task in ("arithmetic", "sums", "arithmetic-mc", "choices") for t in (1, 2, 3, 4)
    }


def lively_records(run):
    from loopscope.studies.records import Records

    return Records([run])
