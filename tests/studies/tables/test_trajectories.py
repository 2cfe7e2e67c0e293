"""The table of changed updates: what survives, worked out by hand."""

import numpy as np
import pytest

from loopscope.stats import Bootstrap
from loopscope.studies.registry import TABLES

trajectories = TABLES["trajectories"]
QUICK = Bootstrap(resamples=40)
# gains of the full steps: 4→5 by −0.5, +0.125, −0.25; 5→6 by −1, −0.5, +0.5
PATHS = {4: ([0.5, 0.25, -0.25], [-1.0, -0.125, 0.0]), 5: ([0.5, 0.5, 1.0], [-1.5, -1.0, -0.5])}


def test_gains_and_what_is_left_of_them(records, synthetic):
    task = synthetic.Task("sums", {first: synthetic.Paths.of(*given) for first, given in PATHS.items()})
    result = trajectories.table(records(task), QUICK)
    rows = {(row.condition.transition, row.changed): row for row in result.rows}
    assert set(rows) == {
        (0, "one update"), (0, "every update"), (4, "one update"), (4, "from there on"), (5, "one update"),
        (5, "from there on"),
    }  # fmt: skip
    gain4, gain5 = np.array([0.5, 0.125, 0.25]), np.array([1.0, 0.5, 0.5])
    one, onwards = rows[4, "one update"], rows[4, "from there on"]
    assert one.immediate.value == pytest.approx(0.25 * gain4.mean())
    assert one.last.value == pytest.approx(0.125 * gain4.mean())
    assert one.survival.value == pytest.approx(0.5)
    assert one.survival.interval is not None
    assert (one.harmed, one.last_depth, one.scale) == (2, 6, 0.25)
    assert one.harmed_immediate.value == pytest.approx(0.25 * (0.5 + 0.25) / 2)
    assert (one.harmed_survival.value, one.still_better.value) == (pytest.approx(0.5), 1.0)
    assert one.apart.value == pytest.approx(one.immediate.value)
    assert onwards.last.value == pytest.approx(0.25 * gain4.mean())
    assert onwards.apart.value == pytest.approx(0.25 * (gain4 + gain5).mean())
    # The depth after the first loop is not stored, so nothing is known of the gain there, nor of every update apart.
    every = rows[0, "every update"]
    assert every.immediate.value is None
    assert every.apart.value is None
    assert every.last.value == 0


def test_runs_without_are_told_how(records, synthetic):
    task = synthetic.Task("sums", {4: synthetic.Paths.of([0.5], [-1.0])})
    result = trajectories.table(records(task, settings={}), QUICK)
    assert result.rows == ()
    assert any("measure with trajectories='0.25,0.5'" in note for note in result.notes)
