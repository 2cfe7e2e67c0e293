import numpy as np
import pytest

from loopscope.studies.tables.mechanism import exact_kl, failure_shares, mechanism


def test_mechanism_hand_computed_row(hand, row_of):
    row = row_of(mechanism.table(hand))
    assert (row["finite_step"], row["harmful"]) == (2, 4)
    assert row["mean_gain"].value == pytest.approx(-0.75 / 8)
    assert row["share"].value == 0.5
    # sign(A) is right for questions 1, 2 and 5; a neutral update has no sign to predict.
    assert row["sign_slope"].value == 3 / 8
    assert row["sign_quadratic"].value == 1.0
    assert row["mae_slope"].value == pytest.approx(4.25 / 8)
    assert row["mae_quadratic"].value == pytest.approx(0.125 / 8)
    # Two pairs of ties among the predictions, one among the gains.
    assert row["rank_correlation"].value == pytest.approx(np.sqrt(41 / 41.5))


def test_intervals_contain_their_estimates(hand, row_of):
    row = row_of(mechanism.table(hand))
    for name in ("mean_gain", "share", "sign_slope", "mae_slope", "mae_quadratic"):
        estimate = row[name]
        assert estimate.interval.low <= estimate.value <= estimate.interval.high


def test_share_interval_recomputes_both_counts(hand, row_of):
    # 8 questions, 4 harmful: a resample has none of them with probability 2^-8, and then no share.
    interval = row_of(mechanism.table(hand))["share"].interval
    assert 0 < interval.undefined / 2000 < 0.02
    assert (interval.low, interval.high) == (0.0, 1.0)


def test_no_harmful_update_has_no_share(awkward):
    row = mechanism.table(awkward["no failures"]).rows[0]
    assert (row["finite_step"], row["harmful"], row["share"].value) == (0, 0, None)


def test_all_neutral_updates_have_a_gain_of_zero_and_no_rank(awkward):
    row = mechanism.table(awkward["all neutral"]).rows[0]
    assert (row["mean_gain"].value, row["harmful"], row["share"].value, row["rank_correlation"].value) == (
        0.0,
        0,
        None,
        None,
    )
    # A = ΔU = 0: the sign is predicted.
    assert row["sign_slope"].value == 1.0


def test_one_row_for_every_run_task_and_transition(lively, quick):
    rows = mechanism.table(lively_records(lively), quick).rows
    assert len(rows) == 16
    assert {(row.condition.task, row.condition.transition) for row in rows} == {
        (task, t) for task in ("arithmetic", "sums", "arithmetic-mc", "choices") for t in (1, 2, 3, 4)
    }


def lively_records(run):
    from loopscope.studies.records import Records

    return Records([run])


def test_failure_shares_hand_computed_row(hand, row_of):
    row = row_of(failure_shares.table(hand))
    assert (row["share"].value, row["beyond_margin"], row["neutral"]) == (0.5, 2, 1)


def test_margin_requires_both_slope_and_loss(records, synthetic):
    # Slope within the margin; loss within the margin; both beyond it; not a failure at all.
    paths = synthetic.Paths.of([5e-5, 0.5, 2e-4, 0.5], [-0.5, -0.50005, -4e-4, 0.1])
    row = failure_shares.table(records(synthetic.Task("sums", {4: paths}))).rows[0]
    assert row["beyond_margin"] == 1
    assert row["share"].value == 1.0


def test_zero_neutral_updates_are_counted_as_zero(awkward):
    assert failure_shares.table(awkward["no failures"]).rows[0]["neutral"] == 0


def test_all_neutral_updates_are_counted(awkward):
    row = failure_shares.table(awkward["all neutral"]).rows[0]
    assert (row["neutral"], row["share"].value) == (4, None)


def test_exact_kl_hand_computed_row(hand, row_of):
    row = row_of(exact_kl.table(hand))
    assert (row["max_residual"], row["satisfied"], row["failures"]) == (0.0, 2, 2)


def test_a_failure_whose_correction_does_not_exceed_its_slope_is_not_counted(records, synthetic):
    paths = synthetic.Paths.of([0.5, 0.5], [-1.0, -1.0])
    columns = {"kl_correction": np.array([1.0, 0.5])}  # A − ΔU is 1
    (row,) = exact_kl.table(records(synthetic.Task("sums", {4: paths}, columns=columns))).rows
    assert (row["satisfied"], row["failures"]) == (1, 2)
    assert row["max_residual"] == pytest.approx(0.5)


def test_nonlinear_readouts_and_options_are_left_out(records, synthetic):
    paths = synthetic.Paths.of([0.5], [-1.0])
    options = records(synthetic.Task("choices", {4: paths}, kind="options"), name="options")
    nonlinear = records(
        synthetic.Task("sums", {4: paths}), name="nonlinear", model={"affine_readout": False, "family": "huginn"}
    )
    assert exact_kl.table(options).rows == exact_kl.table(nonlinear).rows == ()
