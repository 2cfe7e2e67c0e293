"""The table of steps that were too short: what it counts, and its intervals beside SciPy's."""

import pytest

from loopscope.studies import TABLES

longer_steps = TABLES["longer-steps"]
# Best scales 0.5, 1.25, 2 (and further on), 0: two were too short.
SLOPES, QUADRATICS = [1.0, 2.5, 5.0, -1.0], [-1.0, -1.0, -1.0, -1.0]


def test_it_counts_steps_that_were_too_short(records, synthetic):
    task = synthetic.Task("sums", {4: synthetic.Paths.of(SLOPES, QUADRATICS)})
    rows = {row.key: row for row in longer_steps.table(records(task)).rows}
    every = rows["all"]
    assert (every["n"], every["end"], every["at_end"]) == (4, 2.0, 1)
    assert (every["too_short"].value, every["beyond"].value) == (0.5, 0.5)
    assert every["best_scale"].value == pytest.approx((0.5 + 1.25 + 2 + 0) / 4)
    # φ(α*) − φ(1): 0.25, 1.5625 − 1.5, 6 − 4, 0 − (−2).
    assert every["over_full"].value == pytest.approx((0.25 + 0.0625 + 2 + 2) / 4)
    assert every["extra"].value == pytest.approx((0.0625 + 2) / 4)
    # The paths are quadratic, so that the quadratic rule finds their best scales.
    assert every["quadratic_over_full"].value == pytest.approx(every["over_full"].value)
    # The first one gains nothing, φ(1) = 0, and so is neither.
    assert (rows["progressing"]["n"], rows["harmful"]["n"]) == (2, 1)
    assert rows["progressing"]["too_short"].value == 1.0


def test_a_run_without_longer_steps_is_told_how_to_get_them(records, synthetic):
    task = synthetic.Task("sums", {4: synthetic.Paths.of(SLOPES, QUADRATICS)})
    plain = records(task, settings={})
    result = longer_steps.table(plain)
    assert result.rows == ()
    assert any("toy-ouro sums test (measure with scales_to=2)" in note for note in result.notes)
