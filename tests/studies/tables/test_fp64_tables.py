"""Refined optima, scale bounds, their distribution, and the refinement of what they miss."""

import numpy as np
import pytest

from loopscope.studies.tables.fp64 import integrated_bounds, optimum_refinement, refined_optima, scale_bounds

SEVEN = (np.sqrt(1 + 3 * 0.75 * 0.125) - 1) / 0.375
"""Where 0.75 - 2α - 0.375α² = 0."""


def test_refined_optima_by_hand(hand, row_of):
    result = refined_optima.table(hand)
    assert [row["n"] for row in result.rows] == [8, 4, 3, 2]
    everything, primary = row_of(result, "all"), row_of(result, "primary")
    # Optima at 0: questions 2 and 4; at 1: 1, 5 and 6; inside: 0, 3 and 7.
    assert (everything["left"], everything["interior"], everything["right"]) == (2, 3, 3)
    assert (primary["left"], primary["interior"], primary["right"]) == (0, 3, 1)
    # Brackets are half a millionth wide on each side, so the error of question 7 is known to that.
    error = abs(0.375 - SEVEN)
    assert primary["error_low"].value == pytest.approx((error - 5e-7) / 4, abs=1e-12)
    assert primary["error_high"].value == pytest.approx((error + 3 * 5e-7) / 4, abs=1e-12)
    assert everything["error_high"].value == pytest.approx(primary["error_high"].value / 2)
    value = SEVEN * (0.75 - SEVEN - 0.125 * SEVEN**2) - 0.375 * (0.75 - 0.375 - 0.125 * 0.375**2)
    assert primary["regret_high"].value == pytest.approx(value / 4, abs=1e-15)
    assert row_of(result, "failures")["regret_high"].value == pytest.approx(value / 2, abs=1e-15)


def test_regret_is_never_negative(records, synthetic):
    paths = synthetic.Paths.of([0.5], [-1.0])
    columns = {"fp64_predicted_gain": np.array([0.0626]), "fp64_optimum_gain_low": np.array([0.0624])}
    (row, *_) = refined_optima.table(records(synthetic.Task("sums", {4: paths}, columns=columns))).rows
    assert row["regret_low"].value == 0.0
    assert row["regret_high"].value == 0.0


def test_empty_populations_have_no_error(awkward, row_of):
    result = refined_optima.table(awkward["nothing primary"])
    rows = [row for row in result.rows if row.condition.task == "sums" and row.key in ("primary", "failures")]
    assert [(row["n"], row["error_low"].value) for row in rows] == [(0, None), (0, None)]


def test_scale_bounds_by_hand(hand, row_of):
    row = row_of(scale_bounds.table(hand))
    # Only question 7 has a third derivative: 6R = -0.75, κ = 2, so M/(2κ) = C/κ = S/κ = 0.1875.
    assert row["n"] == 4
    assert row["integrated_median"].value == 0.0
    assert row["integrated_p75"].value == pytest.approx(0.1875 / 4)
    assert (row["global_p75"].value, row["signed_p75"].value) == pytest.approx((0.1875 / 4, 0.1875 / 4))
    # Brackets have width, so a bound of zero cannot cover the upper end; question 1 sits at an end and 7 has its bound.
    assert (row["global_covers"], row["integrated_covers"], row["signed_covers"]) == (2, 2, 2)
    assert row["integrated_below_one"].value == 1.0


def test_integrated_bounds_by_hand(hand, row_of):
    result = integrated_bounds.table(hand)
    assert row_of(result, "mean")["scale_bound"].value == pytest.approx(0.1875 / 4)
    assert row_of(result, "maximum")["scale_bound"].value == pytest.approx(0.1875)
    # C² / (2κ) = 0.375² / 4.
    assert row_of(result, "maximum")["regret_bound"].value == pytest.approx(0.140625 / 4)
    assert row_of(result, "median")["regret_upper"].value == pytest.approx(0.0, abs=1e-12)
    assert row_of(result, "mean")["gain"].value == pytest.approx((-0.5 + 0.125 + 0 - 0.375) / 4)
    assert row_of(result, "maximum")["scale_bound"].interval is None


def test_refinement_lists_what_the_signed_bound_misses(hand):
    rows = optimum_refinement.table(hand).rows
    # Questions 0 and 3 are quadratic: their bound is zero and the bracket is not.
    assert [row.key for row in rows] == ["00000", "00003"]
    for row in rows:
        assert row["error_upper"] == pytest.approx(5e-7)
        assert row["signed_bound"] == 0.0
        # Constant curvature pins the zero of φ' exactly.
        assert row["refined_upper"] == pytest.approx(0.0, abs=1e-15)
        assert row["margin"] == pytest.approx(0.0, abs=1e-15)


def test_refinement_with_curvature_bounds_by_hand(records, synthetic):
    # Bracket [0.2, 0.3], slopes 0.1 and -0.1, 1.6 ≤ -φ'' ≤ 2.5: the zero lies in [0.24, 0.26].
    paths = synthetic.Paths.of([0.5], [-1.0])
    columns = {
        "fp64_optimum_low": [0.2], "fp64_optimum_high": [0.3], "fp64_optimum_slope": [[0.1, -0.1]],
        "fp64_optimum_curvature": [[1.6, 2.5]],
        "fp64_predicted_scale": [0.25], "fp64_S": [0.06],
    }  # fmt: skip
    columns = {name: np.array(values) for name, values in columns.items()}
    (row,) = optimum_refinement.table(records(synthetic.Task("sums", {4: paths}, columns=columns))).rows
    assert row["error_upper"] == pytest.approx(0.05)
    assert row["signed_bound"] == pytest.approx(0.03)
    assert row["refined_upper"] == pytest.approx(0.01)
    assert row["margin"] == pytest.approx(0.02)


def test_nothing_to_refine_is_said(records, synthetic):
    paths = synthetic.Paths.of([0.5, 0.3], [-1.0, -1.0], [-0.05, 0.05])
    result = optimum_refinement.table(records(synthetic.Task("sums", {4: paths})))
    assert result.rows == ()
    assert "nothing to refine" in result.notes[-1]
