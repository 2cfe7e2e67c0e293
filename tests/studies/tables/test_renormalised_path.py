"""The table of the renormalised path: what it compares, and what it says of runs without."""

import numpy as np
import pytest

from loopscope.studies.registry import TABLES

study = TABLES["renormalised-path"]
# The made-up renormalised path has three quarters of the slope and the same end (`synthetic.bent`).
SLOPES, QUADRATICS = np.array([1.0, 0.2, -0.5, 0.5]), np.array([-2.0, -0.9, -0.5, -0.25])


def test_it_compares_both_paths(records, synthetic):
    paths = synthetic.Paths.of(SLOPES, QUADRATICS)
    (row,) = study.table(records(synthetic.Task("sums", {4: paths}))).rows
    bent = synthetic.bent(paths)
    assert np.allclose(bent.value(1.0), paths.value(1.0))
    assert (row.updates, row.harmful, row.failures, row.renormalised_failures) == (4, 3, 2, 2)
    assert (row.outcome_agreement.value, row.sign_agreement.value) == (1.0, 1.0)
    assert (row.recovered, row.renormalised_recovered) == (1, 1)
    assert row.norm_loss.value == pytest.approx(0.01)
    grid = np.arange(21) / 20
    best = [np.max([p.value(alpha) for alpha in grid], axis=0) for p in (paths, bent)]
    assert row.best_difference.value == pytest.approx(np.mean(best[1] - best[0]))
    quadratic = [np.where(p.A > 0, p.value(np.clip(-p.A / (2 * p.Q), 0, 1)), 0.0) for p in (paths, bent)]
    assert row.quadratic_difference.value == pytest.approx(np.mean(quadratic[1] - quadratic[0]))


def test_an_outcome_that_changes_is_counted(records, synthetic, monkeypatch):
    monkeypatch.setattr(synthetic, "BENT", -1.0)
    task = synthetic.Task("sums", {4: synthetic.Paths.of(SLOPES, QUADRATICS)})
    (row,) = study.table(records(task)).rows
    # Slopes change their sign, ends do not: the failures change places, the progressing update stays one.
    assert (row.failures, row.renormalised_failures, row.harmful) == (2, 1, 3)
    assert (row.outcome_agreement.value, row.sign_agreement.value) == (0.25, 0.0)


def test_what_is_missing_is_said(records, synthetic):
    task = synthetic.Task("sums", {4: synthetic.Paths.of(SLOPES, QUADRATICS)})
    result = study.table(records(task, settings={}, name="plain"))
    assert result.rows == ()
    assert any("measure with renormalise=True" in note for note in result.notes)
    quick = study.table(records(task, level="quick", name="quick"))
    assert quick.rows == ()
    assert any("measure with level='grid'" in note for note in quick.notes)
