import numpy as np
import pytest

from loopscope.studies.tables.scales import scale_prediction


def test_populations_of_the_eight_questions(hand, row_of):
    result = scale_prediction.table(hand)
    # A > 0 and Q < 0: questions 0, 1, 3 and 7.
    assert [row["n"] for row in result.rows] == [4, 8, 3]
    assert row_of(result, "interior")["n"] == 3


def test_primary_subset_by_hand(hand, row_of):
    row = row_of(scale_prediction.table(hand), "primary")
    # Grid optima 0.25, 1, 0.5 and, for 0.75α - α² - 0.125α³, 0.35 (its continuous optimum is 0.3549…).
    assert row["scale_mae"].value == pytest.approx(0.025 / 4)
    assert row["spearman"].value == pytest.approx(1.0)
    assert (row["at_one"], row["both_at_one"], row["at_zero"]) == (1, 1, 0)
    # Full-step regrets: 0.0625 + 0.5, 0, 0.125, and max φ - φ(1) of question 7.
    seven = 0.35 * (0.75 - 0.35 - 0.125 * 0.35**2)
    assert row["first_order_regret"].value == pytest.approx((0.5625 + 0 + 0.125 + seven + 0.375) / 4)
    # 0.375 is as near to 0.35 as to 0.4: the smaller is taken, which is the optimum, so nothing is lost.
    assert row["quadratic_regret"].value == pytest.approx(0.0, abs=1e-15)
    assert row["advantage"].value == pytest.approx(row["first_order_regret"].value)


def test_fixed_scales_by_hand(hand, row_of):
    row = row_of(scale_prediction.table(hand), "primary")
    seven = 0.35 * (0.75 - 0.35 - 0.125 * 0.35**2)
    assert row["fixed_0"].value == pytest.approx((0.0625 + 0.125 + 0.125 + seven) / 4)
    half = 0.5 * (0.75 - 0.5 - 0.125 * 0.25)
    assert row["fixed_50"].value == pytest.approx((0.0625 + (0.125 - 0.09375) + 0 + (seven - half)) / 4)
    assert row["fixed_100"].value == row["first_order_regret"].value
    quarter = 0.25 * (0.75 - 0.25 - 0.125 * 0.0625)
    assert row["fixed_25"].value == pytest.approx((0 + 0.0703125 + 0.03125 + (seven - quarter)) / 4)
    assert row["best_fixed"] == 0.25
    assert row["best_fixed_regret"] == row["fixed_25"]


def test_all_questions_by_hand(hand, row_of):
    row = row_of(scale_prediction.table(hand), "all")
    # Question 6 has A < 0 and Q > 0 with a rising end: both prediction and optimum are the full step,
    # while the first-order rule stays at 0 and loses 0.25.
    assert (row["at_zero"], row["at_one"]) == (2, 3)
    assert row["scale_mae"].value == pytest.approx(0.025 / 8)
    seven = 0.35 * (0.75 - 0.35 - 0.125 * 0.35**2)
    assert row["first_order_regret"].value == pytest.approx((0.5625 + 0.125 + seven + 0.375 + 0.25) / 8)


def test_ties_between_fixed_scales_choose_the_smaller(awkward, row_of):
    rows = [row for row in scale_prediction.table(awkward["all neutral"]).rows if row.condition.task == "sums"]
    (everything,) = (row for row in rows if row.key == "all")
    assert (everything["best_fixed"], everything["best_fixed_regret"].value) == (0.0, 0.0)


def test_an_empty_population_has_no_best_fixed_scale(awkward):
    row = scale_prediction.table(awkward["nothing primary"]).rows[0]
    assert (row.key, row["n"], row["best_fixed"], row["quadratic_regret"].value) == ("primary", 0, None, None)


def test_grid_optimum_at_zero_although_the_slope_is_positive(records, synthetic):
    # The beneficial interval ends at 0.01, below the first grid scale.
    paths = synthetic.Paths.of([0.01, 0.5], [-1.0, -1.0])
    row = scale_prediction.table(records(synthetic.Task("sums", {4: paths}))).rows[0]
    assert row["at_zero"] == 1


def test_intervals_resample_the_subset_alone(hand, row_of):
    row = row_of(scale_prediction.table(hand), "primary")
    assert row["first_order_regret"].n == 4
    regrets = np.array([0.5625, 0.0, 0.125])
    assert row["first_order_regret"].interval.high >= regrets.max() / 4
