"""The quarter step, the quadratic intervention on rounded states, the bound-selected scale, and all at a glance."""

import numpy as np
import pytest

from loopscope.studies.tables.fp64 import bound_selected
from loopscope.studies.tables.interventions import contraction, interventions, quadratic_intervention


def test_hand_computed_row(hand, row_of):
    row = row_of(contraction.table(hand))
    # φ(1/4): 0.0625 for question 0; 0.25·0.75 - 0.0625 - 0.125/64 for question 7.
    assert (row["recovered"], row["failures"], row["recovered_beyond_margin"]) == (2, 2, 2)
    assert row["recovery"].value == 1.0
    assert row["mean_gain"].value == pytest.approx((0.0625 + 0.1875 - 0.0625 - 0.125 / 64) / 2)


def test_unrecovered_failures_stay_in_the_mean(records, synthetic):
    # α = 1/4 is too far for the second: its gain ends at 0.1.
    paths = synthetic.Paths.of([0.5, 0.1, 0.5], [-1.0, -1.0, 0.0])
    (row,) = contraction.table(records(synthetic.Task("sums", {4: paths}))).rows
    assert (row["recovered"], row["failures"]) == (1, 2)
    assert row["recovery"].value == 0.5
    assert row["mean_gain"].value == pytest.approx((0.0625 + 0.025 - 0.0625) / 2)


def test_a_recovery_within_the_margin_is_told_apart(records, synthetic):
    paths = synthetic.Paths.of([1e-4], [-2e-4])
    (row,) = contraction.table(records(synthetic.Task("sums", {4: paths}))).rows
    assert (row["recovered"], row["recovered_beyond_margin"]) == (1, 0)


def test_no_failures_print_a_dash(awkward):
    result = contraction.table(awkward["no failures"])
    assert (result.rows[0]["failures"], result.rows[0]["recovery"].value) == (0, None)
    line = next(line for line in result.to_markdown().splitlines() if "sums" in line)
    assert "0/0" in line
    assert line.count("—") == 2


@pytest.fixture
def rounded(records, synthetic):
    """Three failures and one progressing update, gains of the rounded states set by hand."""
    paths = synthetic.Paths.of([0.5, 0.5, 0.5, 0.5], [-1.0, -1.0, -1.0, -0.25])
    columns = {
        "bf16_quarter_gain": np.array([0.1, -0.1, 0.0, 0.2]),
        "bf16_quadratic_gain": np.array([0.2, 0.1, -0.1, 0.4]),
    }
    return records(synthetic.Task("sums", {4: paths}, columns=columns))


def test_quadratic_intervention_by_hand(rounded, row_of):
    result = quadratic_intervention.table(rounded)
    quarter, quadratic, difference = (row_of(result, key) for key in ("quarter", "quadratic", "difference"))
    # Zero gain is no recovery.
    assert (quarter["recovered"], quadratic["recovered"], difference["recovered"]) == (1, 2, 1)
    assert {row["failures"] for row in result.rows} == {3}
    assert quarter["recovery"].value == pytest.approx(1 / 3)
    assert difference["recovery"].value == pytest.approx(1 / 3)
    assert quarter["mean_gain"].value == pytest.approx(0.05)
    assert quadratic["mean_gain"].value == pytest.approx(0.15)
    assert difference["mean_gain"].value == pytest.approx(0.1)


def test_gains_resample_all_questions_and_recovery_the_failures(rounded, row_of):
    row = row_of(quadratic_intervention.table(rounded), "quadratic")
    assert (row["mean_gain"].n, row["recovery"].n) == (4, 3)


def test_without_failures_gains_remain_and_recovery_is_undefined(awkward, row_of):
    rows = [row for row in quadratic_intervention.table(awkward["no failures"]).rows if row.condition.task == "sums"]
    assert all(row["recovery"].value is None and row["failures"] == 0 for row in rows)
    assert all(row["mean_gain"].value is not None for row in rows)


def test_bound_selected_by_hand(hand, row_of):
    result = bound_selected.table(hand)
    primary, failures = row_of(result, "primary"), row_of(result, "failures")
    # L_D = -φ'' at its largest: 2, 0.25, 1 and 2.75; scales 0.9·2A/L_D, at most 1.
    scales = np.array([0.45, 1.0, 0.9, 0.9 * 1.5 / 2.75])
    gains = np.array([0.5, 0.25, 0.5, 0.75]) * scales - np.array([1, 0.125, 0.5, 1]) * scales**2
    gains[3] -= 0.125 * scales[3] ** 3
    quarter = np.array([0.0625, 0.0625 - 0.0078125, 0.125 - 0.03125, 0.1875 - 0.0625 - 0.125 / 64])
    assert (primary["n"], primary["quarter_positive"], primary["selected_positive"]) == (4, 4, 4)
    assert primary["mean_gain"].value == pytest.approx(gains.mean())
    assert primary["advantage"].value == pytest.approx((gains - quarter).mean())
    assert (failures["n"], failures["selected_positive"]) == (2, 2)
    assert failures["mean_gain"].value == pytest.approx(gains[[0, 3]].mean())
    assert failures["scale_median"].value == pytest.approx(scales[[0, 3]].mean())
    assert (failures["scale_minimum"], failures["scale_maximum"]) == pytest.approx((0.45, scales[3]))


def test_every_gain_exceeds_its_guarantee(hand, row_of):
    # With constant curvature the guarantee is met exactly; question 7 has room.
    assert row_of(bound_selected.table(hand), "primary")["guarantee_margin"] == pytest.approx(0.0, abs=1e-15)


def test_empty_populations_have_no_scale(awkward):
    result = bound_selected.table(awkward["nothing primary"])
    assert [row["n"] for row in result.rows] == [0, 0]
    assert all(row["mean_gain"].value is None and row["scale_minimum"] is None for row in result.rows)


def test_failures_without_a_positive_fp64_slope_stay_in_the_count(records, synthetic, row_of):
    """Three failures by the stored slope, the first of which has no slope in FP64: it is kept where it is."""
    fp64 = {
        "fp64_slope": np.array([-1e-9, 0.5, 0.4]),
        "fp64_safe_scale": np.ma.masked_array([0.0, 0.45, 0.36], mask=[True, False, False]),
        "fp64_safe_gain": np.ma.masked_array([0.0, 0.02, 0.01], mask=[True, False, False]),
    }
    task = synthetic.Task("sums", {4: synthetic.Paths.of([1e-9, 0.5, 0.4], [-1.0, -1.0, -1.0])}, columns=fp64)
    made = records(task)
    result = bound_selected.table(made)
    row = row_of(result, "failures")
    assert (row["n"], row["without_scale"], row["selected_positive"], row["scale_minimum"]) == (3, 1, 2, 0.0)
    assert row["mean_gain"].value == pytest.approx((0 + 0.02 + 0.01) / 3)
    assert any("1 of 3 (finite-step failures, toy-ouro sums test 4→5)" in note for note in result.notes)
    glance = interventions.table(made)
    bound = row_of(glance, "bound")
    assert (bound["recovered_selected"], bound["failures"], bound["n"]) == (2, 3, 3)
    assert any("1 of 3 (finite-step failures" in note for note in glance.notes)


def test_both_rules_at_a_glance(rounded, row_of):
    result = interventions.table(rounded)
    quadratic, bound = row_of(result, "quadratic"), row_of(result, "bound")
    assert (quadratic["recovered_quarter"], quadratic["recovered_selected"], quadratic["failures"], quadratic["n"]) == (
        1,
        2,
        3,
        4,
    )
    assert quadratic["advantage"].value == pytest.approx(0.1)
    # The bound rule reads FP64 paths, not rounded states: every failure recovers.
    assert (bound["recovered_quarter"], bound["recovered_selected"], bound["failures"], bound["n"]) == (3, 3, 3, 3)


def test_a_nonlinear_readout_has_no_bound_rule(records, synthetic):
    task = synthetic.Task("sums", {19: synthetic.Paths.of([0.5, 0.2], [-1.0, -0.1])})
    model = {"affine_readout": False, "family": "huginn", "name": "toy-huginn"}
    assert [row.key for row in interventions.table(records(task, model=model)).rows] == ["quadratic"]
