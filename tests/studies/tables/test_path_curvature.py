import numpy as np
import pytest

from loopscope.studies.tables.geometry import path_curvature


def test_hand_computed_row(hand, row_of):
    row = row_of(path_curvature(hand))
    # Curvature is constant but for question 7: φ'' = -2 - 0.75α, ratio at one half 2.375 / 2.
    assert (row.n, row.ratio_n) == (4, 4)
    assert row.ratio_median.value == 1.0
    assert row.ratio_p75.value == pytest.approx(1 + 0.25 * 0.1875)
    # Largest adjacent differences: 0, 0, 0 and 0.1875 / (2 + ε).
    assert row.adjacent_median.value == 0.0
    assert row.negative_prefix == 4
    # Questions whose optimum lies below the next sampled scale, 0.25: none here.
    assert row.only_current == 0


def test_a_positive_curvature_before_the_optimum_is_counted_out(records, synthetic):
    paths = synthetic.Paths.of([1.0, 1.0, 0.1], [-0.25, -0.25, -1.0])
    curvature = np.array([[-0.5, 0.1, -0.5, -0.5, -0.5], [-0.5] * 5, [-2.0] * 5])
    (row,) = path_curvature(records(synthetic.Task("sums", {4: paths}, columns={"curvature_path": curvature}))).rows
    assert row.negative_prefix == 2
    # The third optimum is 0.05: only the current state is checked.
    assert row.only_current == 1


def test_flat_origins_are_left_out_of_the_ratio(records, synthetic):
    # ε is 1e-6 of the median |2Q| over all questions, primary or not: here 2e-6.
    paths = synthetic.Paths.of([1.0, 1.0, -1.0], [-1.0, -5e-7, -1.0])
    curvature = np.array([[-2.0, -2.0, -3.0, -2.0, -2.0], [-1e-6, 0, -9.0, 0, 0], [-2.0] * 5])
    (row,) = path_curvature(records(synthetic.Task("sums", {4: paths}, columns={"curvature_path": curvature}))).rows
    assert (row.n, row.ratio_n) == (2, 1)
    assert row.ratio_median.value == 1.5


def test_paths_without_any_curvature_give_a_dash(awkward):
    (row, *_) = path_curvature(awkward["nothing primary"]).rows
    assert (row.n, row.ratio_median.value, row.adjacent_median.value, row.negative_prefix) == (0, None, None, 0)
