import numpy as np
import pytest

from loopscope.studies.tables.checks import derivative_checks


def test_affine_run_by_hand(hand, row_of):
    row = row_of(derivative_checks.table(hand))
    assert (row["checks"], row["passed"], row["scalar_difference"]) == (8, 8, 0.0)
    assert (row["slope_difference"], row["quadratic_difference"], row["gain_difference"]) == (0.0, 0.0, 0.0)
    # Primary questions: L_D and the largest sampled curvature coincide.
    assert row["envelope_ratio"].value == 1.0
    assert row["sampled_curvature"].value == pytest.approx(np.median([2, 0.25, 1, 2.75]))
    # φ'' < 0 everywhere but for questions 5 and 6.
    assert row["negative_everywhere"] == 6
    assert row["third_relative_1"].value is None


def test_differences_and_failed_checks(records, synthetic):
    paths = synthetic.Paths.of([0.5, 0.25], [-1.0, -0.5])
    columns = {
        "scalar_quadratic": np.ma.masked_array([-1.25, 0.0], mask=[False, True]),
        "scalar_check_passed": [False, None],
        "fp64_slope": np.array([0.5, 0.26]),
        "fp64_gain": np.array([-0.75, -0.25]),
    }
    (row,) = derivative_checks.table(records(synthetic.Task("sums", {4: paths}, columns=columns))).rows
    assert (row["checks"], row["passed"]) == (1, 0)
    assert row["scalar_difference"] == pytest.approx(0.25)
    assert row["slope_difference"] == pytest.approx(0.01)
    assert row["gain_difference"] == pytest.approx(0.25)


def test_searched_paths_have_third_derivative_and_refinement_checks(records, synthetic):
    task = synthetic.Task("sums", {19: synthetic.Paths.of([0.5, 0.25], [-1.0, -0.5], [0.1, 0.1])})
    model = {"affine_readout": False, "family": "huginn", "name": "toy-huginn"}
    (row,) = derivative_checks.table(records(task, model=model)).rows
    assert row["third_relative_1"].value == pytest.approx(1e-5)
    assert row["third_relative_3"].value == pytest.approx(6e-7)
    assert row["third_absolute"] == pytest.approx(6e-8)
    assert (row["refined_gain"], row["refined_scale"]) == pytest.approx((1e-10, 1e-4))
    assert row["envelope_ratio"].value is None


def test_a_run_at_level_quick_has_no_checks(records, synthetic):
    result = derivative_checks.table(
        records(synthetic.Task("sums", {4: synthetic.Paths.of([0.5], [-1.0])}), level="quick")
    )
    assert result.rows == ()
    assert "level='grid'" in result.notes[-1]
