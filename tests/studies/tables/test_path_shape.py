import numpy as np
import pytest

from loopscope.studies.tables.scales import oracles, path_curvature, progress_boundary


def test_path_curvature_hand_computed_row(hand, row_of):
    row = row_of(path_curvature.table(hand))
    # Curvature is constant but for question 7: φ'' = -2 - 0.75α, ratio at one half 2.375 / 2.
    assert (row["n"], row["ratio_n"]) == (4, 4)
    assert row["ratio_median"].value == 1.0
    assert row["ratio_p75"].value == pytest.approx(1 + 0.25 * 0.1875)
    # Largest adjacent differences: 0, 0, 0 and 0.1875 / (2 + ε).
    assert row["adjacent_median"].value == 0.0
    assert row["negative_prefix"] == 4
    # Questions whose optimum lies below the next sampled scale, 0.25: none here.
    assert row["only_current"] == 0


def test_a_positive_curvature_before_the_optimum_is_counted_out(records, synthetic):
    paths = synthetic.Paths.of([1.0, 1.0, 0.1], [-0.25, -0.25, -1.0])
    curvature = np.array([[-0.5, 0.1, -0.5, -0.5, -0.5], [-0.5] * 5, [-2.0] * 5])
    (row,) = path_curvature.table(
        records(synthetic.Task("sums", {4: paths}, columns={"curvature_path": curvature}))
    ).rows
    assert row["negative_prefix"] == 2
    # The third optimum is 0.05: only the current state is checked.
    assert row["only_current"] == 1


def test_flat_origins_are_left_out_of_the_ratio(records, synthetic):
    # ε is 1e-6 of the median |2Q| over all questions, primary or not: here 2e-6.
    paths = synthetic.Paths.of([1.0, 1.0, -1.0], [-1.0, -5e-7, -1.0])
    curvature = np.array([[-2.0, -2.0, -3.0, -2.0, -2.0], [-1e-6, 0, -9.0, 0, 0], [-2.0] * 5])
    (row,) = path_curvature.table(
        records(synthetic.Task("sums", {4: paths}, columns={"curvature_path": curvature}))
    ).rows
    assert (row["n"], row["ratio_n"]) == (2, 1)
    assert row["ratio_median"].value == 1.5


def test_paths_without_any_curvature_give_a_dash(awkward):
    (row, *_) = path_curvature.table(awkward["nothing primary"]).rows
    assert (row["n"], row["ratio_median"].value, row["adjacent_median"].value, row["negative_prefix"]) == (
        0,
        None,
        None,
        0,
    )


def test_progress_boundary_hand_computed_row(hand, row_of):
    row = row_of(progress_boundary.table(hand))
    # Primary: 0, 1, 3, 7. Question 0 crosses at 0.5 exactly: φ(0.5) = 0, first negative 0.55, root 0.5 in [0.5, 0.55).
    # Question 3 ends at 0 and is never negative. Question 7 crosses near 0.69, in [0.65, 0.7); its root says 0.75.
    assert (row["primary"], row["crossings"], row["hits"], row["unobserved"]) == (4, 2, 1, 2)
    assert row["hit_rate"].value == 0.5


def test_lower_end_hits_and_upper_end_does_not(records, synthetic):
    # φ(0.5) = -A·ε makes 0.5 the first negative scale, so a root at 0.5 lies on the excluded upper end.
    on_lower = synthetic.Paths.of([0.5], [-1.0])
    on_upper = synthetic.Paths.of([0.5], [-1.0], [-1e-9])
    assert progress_boundary.table(records(synthetic.Task("sums", {4: on_lower}), name="l")).rows[0]["hits"] == 1
    assert progress_boundary.table(records(synthetic.Task("sums", {4: on_upper}), name="u")).rows[0]["hits"] == 0


def test_without_a_crossing_there_is_no_rate(awkward):
    row = progress_boundary.table(awkward["one harmless question"]).rows[0]
    assert (row["primary"], row["crossings"], row["hits"], row["hit_rate"].value, row["unobserved"]) == (
        1,
        0,
        0,
        None,
        1,
    )


def test_oracles_hand_computed_row(hand, row_of):
    row = row_of(oracles.table(hand))
    # Best of five scales against the better end. Question 0: 0.0625 at 1/4 over 0. Question 3: 0.125 at 1/2 over 0.
    # Question 7: the larger of φ(1/4) = 0.125 - 1/512 and φ(1/2) = 0.125 - 1/64, over 0. All others: an end is best.
    seven = 0.125 - 0.125 / 64
    assert (row["n"], row["interior"], row["beyond_margin"]) == (8, 3, 3)
    assert row["gain_over_halt"].value == pytest.approx((0.0625 + 0.125 + seven) / 8)
    # Over the full step: 0.5625, 0, 0.5, 0.125, 0.25, 0, 0, seven + 0.375.
    assert row["gain_over_full"].value == pytest.approx((0.5625 + 0.5 + 0.125 + 0.25 + seven + 0.375) / 8)
    assert row["share"].value == pytest.approx(row["gain_over_halt"].value / row["gain_over_full"].value)


def test_nothing_to_gain_over_the_full_step_has_no_share(awkward):
    row = oracles.table(awkward["all neutral"]).rows[0]
    assert (row["interior"], row["gain_over_halt"].value, row["share"].value) == (0, 0.0, None)


def test_an_advantage_within_the_margin_is_told_apart(records, synthetic):
    (row,) = oracles.table(records(synthetic.Task("sums", {4: synthetic.Paths.of([1e-4], [-1e-4])}))).rows
    assert (row["interior"], row["beyond_margin"]) == (1, 0)
