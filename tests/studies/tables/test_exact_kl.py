import numpy as np
import pytest

from loopscope.studies.tables.mechanism import exact_kl


def test_hand_computed_row(hand, row_of):
    row = row_of(exact_kl(hand))
    assert (row.max_residual, row.satisfied, row.failures) == (0.0, 2, 2)


def test_a_failure_whose_correction_does_not_exceed_its_slope_is_not_counted(records, synthetic):
    paths = synthetic.Paths.of([0.5, 0.5], [-1.0, -1.0])
    columns = {"kl_correction": np.array([1.0, 0.5]), "kl_residual": np.array([1e-7, -3e-6])}
    (row,) = exact_kl(records(synthetic.Task("sums", {4: paths}, columns=columns))).rows
    assert (row.satisfied, row.failures) == (1, 2)
    assert row.max_residual == pytest.approx(3e-6)


def test_nonlinear_readouts_and_options_are_left_out(records, synthetic):
    paths = synthetic.Paths.of([0.5], [-1.0])
    options = records(synthetic.Task("choices", {4: paths}, kind="options"), name="options")
    nonlinear = records(
        synthetic.Task("sums", {4: paths}), name="nonlinear", model={"affine_readout": False, "family": "huginn"}
    )
    assert exact_kl(options).rows == exact_kl(nonlinear).rows == ()
