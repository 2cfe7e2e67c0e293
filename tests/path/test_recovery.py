import numpy as np
import pytest

from loopscope.path import CONTRACTION, recovery


def test_the_quarter_step_is_the_papers_contraction():
    assert CONTRACTION == 0.25


def test_only_finite_step_failures_count():
    found = recovery(
        slope=[1.0, 1.0, 1.0, -1.0, 1.0, 0.0],
        gain=[-1.0, -1.0, -1.0, -1.0, 1.0, -1.0],
        contracted_gain=[0.5, -0.25, 0.0, 9.0, 9.0, 9.0],
    )
    assert found == (3, 1, 1 / 3, 0.25 / 3)
    assert (type(found.failures), type(found.recovered)) == (int, int)
    assert type(found.mean_gain) is float


def test_one_slope_or_gain_serves_every_update():
    assert recovery(1.0, -1.0, [1.0, -1.0, 3.0]) == (3, 2, 2 / 3, 1.0)
    assert recovery(1.0, [-1.0, 1.0], [1.0, 5.0]) == (1, 1, 1.0, 1.0)


def test_without_failures_there_is_no_fraction():
    found = recovery([1.0], [1.0], [1.0])
    assert found[:2] == (0, 0)
    assert np.isnan(found.fraction)
    assert np.isnan(found.mean_gain)


def test_every_failure_is_recovered_by_a_short_enough_step(paths):
    failures = (paths.slope > 0) & (paths.gain < 0)
    limit = paths.slope / np.maximum(paths.bound_of(2), 1e-300)
    scale = np.where(failures, np.minimum(1.0, limit), 0.0)
    found = recovery(paths.slope, paths.gain, paths.at(scale))
    assert found.failures == failures.sum() > 0
    assert found.fraction == 1.0
    assert found.mean_gain > 0


def test_bad_arguments_are_refused(refuses):
    with refuses("contracted_gain is one number: give one entry per update"):
        recovery(1.0, -1.0, 1.0)
    with refuses("shapes differ (slope (1,), gain (2,), contracted_gain (2,)): give one entry per update in each"):
        recovery([1.0], [-1.0, 1.0], [1.0, 1.0])
    for position, name in enumerate(("slope", "gain", "contracted_gain")):
        arguments = [[1.0], [-1.0], [1.0]]
        arguments[position] = [np.nan]
        with refuses(f"{name} is NaN or infinite at index [0]: leave such updates out"):
            recovery(*arguments)


def test_the_mean_is_over_failures_only():
    assert recovery([1.0, -1.0], [-1.0, -1.0], [2.0, 100.0]).mean_gain == pytest.approx(2.0)
