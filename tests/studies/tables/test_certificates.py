"""The table of certificates: what it counts, and what it says of runs that have none."""

import numpy as np
import pytest

from loopscope.studies.registry import TABLES

certificates = TABLES["certificates"]
# A progressing update, a finite-step failure that a quarter recovers, a directional failure, and one that stays open.
SLOPES, QUADRATICS = [0.5, 0.25, -0.5, 0.5], [-0.25, -0.5, -0.5, -0.25]


def test_it_counts_verdicts(records, synthetic):
    task = synthetic.Task("sums", {4: synthetic.Paths.of(SLOPES, QUADRATICS)})
    (row,) = certificates.table(records(task)).rows
    assert (row["updates"], row["certified"], row["share"]) == (4, 3, 0.75)
    assert (row["failures"], row["recovered"], row["lost"], row["contradicted"], row["signs"]) == (1, 1, 0, 0, 4)
    assert row["slope_width"] == pytest.approx(2e-12, rel=1e-3)


def test_a_recorded_outcome_that_a_certificate_contradicts_is_counted(records, synthetic):
    task = synthetic.Task("sums", {4: synthetic.Paths.of(SLOPES, QUADRATICS)}, columns={"gain": -np.ones(4)})
    (row,) = certificates.table(records(task)).rows
    assert row["contradicted"] == 1  # the first; the last one is open


def test_a_nonlinear_readout_is_said_not_to_be_certified(records, synthetic):
    task = synthetic.Task("sums", {4: synthetic.Paths.of(SLOPES, QUADRATICS)})
    result = certificates.table(records(task, model={"affine_readout": False}))
    assert result.rows == ()
    assert any("not certified: its readout is not affine" in note for note in result.notes)
