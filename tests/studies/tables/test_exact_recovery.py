"""Recovery on rounded and on exact states: by hand, and what a level without FP64 leaves out."""

import numpy as np
import pytest

from loopscope.studies.registry import TABLES

study = TABLES["exact-recovery"]


def test_by_hand(records, synthetic, row_of):
    # Two finite-step failures (0 and 1), a progressing and a directional update.
    paths = synthetic.Paths.of([0.5, 0.25, 0.5, -0.25], [-1.0, -2.0, -0.25, -0.25])
    rounded = {"bf16_quarter_gain": [-0.01, 0.02, 0.1, -0.1], "bf16_quadratic_gain": [0.03, -0.02, 0.2, 0.0]}
    task = synthetic.Task("sums", {4: paths}, columns={name: np.array(values) for name, values in rounded.items()})
    result = study.table(records(task, level="full"))
    quarter, quadratic = row_of(result, "quarter"), row_of(result, "quadratic")
    # φ(1/4) = 0.125 − 0.0625 > 0 and 0.0625 − 0.125 < 0: rounding loses one recovery and wins another.
    assert (quarter["failures"], quarter["rounded"], quarter["exact"]) == (2, 1, 1)
    assert (quarter["lost"], quarter["won"]) == (1, 1)
    assert (quadratic["rounded"], quadratic["exact"], quadratic["lost"], quadratic["won"]) == (1, 2, 1, 0)
    exact = np.array(paths.value(0.25))
    assert quarter["exact_gain"].value == pytest.approx(exact.mean())
    assert quarter["difference"].value == pytest.approx(np.mean(rounded["bf16_quarter_gain"] - exact))
    assert quarter["largest"] == pytest.approx(np.abs(rounded["bf16_quarter_gain"] - exact).max())
    assert quarter["fp64"] == 1
    assert quadratic["fp64"] == 2


def test_without_fp64_the_column_is_empty(records, synthetic, row_of):
    task = synthetic.Task("sums", {4: synthetic.Paths.of([0.5, 0.25], [-1.0, -0.5])})
    result = study.table(records(task, level="grid"))
    assert row_of(result, "quarter")["fp64"] is None
    assert row_of(result, "quarter")["exact"] == 2
