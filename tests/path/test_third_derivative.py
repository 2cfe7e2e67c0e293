import numpy as np
import pytest

from loopscope.path import (
    combined_regret_bound,
    curvature_deviation,
    predicted_scale,
    taylor_deviation_bound,
    taylor_regret_bound,
    taylor_scale_bound,
    uniform_grid,
)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_the_deviation_is_covered_on_every_path(paths, rounding, alpha):
    scales = np.full(paths.count, alpha)
    true_lower, _ = paths.deviation(scales)
    M = paths.bound_of(3)
    assert (true_lower <= taylor_deviation_bound(M, scales) + rounding * (1 + M)).all()


def test_the_scale_error_is_covered_on_every_path(paths):
    best, _ = paths.maximisers
    M = paths.bound_of(3)
    error = np.abs(predicted_scale(paths.slope, paths.quadratic) - best)
    for known in (best, 1.0):
        assert (error <= taylor_scale_bound(M, paths.quadratic, known) + 1e-9).all()


def test_the_regret_is_covered_on_every_path(paths, rounding):
    best, value = paths.maximisers
    M = paths.bound_of(3)
    predicted = predicted_scale(paths.slope, paths.quadratic)
    regret = value - paths.at(predicted)
    slack = rounding * (1 + paths.bound_of(2))
    assert (regret <= taylor_regret_bound(M, best, predicted) + slack).all()
    assert (regret <= taylor_regret_bound(M) + slack).all()
    nodes = uniform_grid(65)
    deviation = curvature_deviation(nodes, paths.on(nodes, 2), paths.cell_constants(nodes)).upper
    for arguments in ((), (deviation,), (deviation, best, predicted)):
        assert (regret <= combined_regret_bound(M, paths.quadratic, *arguments) + slack).all()


def test_the_formulas_are_those_of_the_paper():
    assert taylor_deviation_bound(3.0) == 1.5
    assert taylor_deviation_bound(8.0, 0.5) == 1.0
    assert taylor_deviation_bound([8.0, 4.0], [0.5, 1.0]).tolist() == [1.0, 2.0]
    assert taylor_scale_bound(1.0, -1.0) == 0.25
    assert taylor_scale_bound(1.0, -1.0, 0.5) == 0.0625
    assert taylor_scale_bound(100.0, -1.0) == 1.0
    assert taylor_scale_bound(100.0, -1.0, capped=False) == 25.0
    assert taylor_scale_bound(1.0, 1.0) == 1.0
    assert taylor_scale_bound(1.0, 1.0, capped=False) == np.inf
    assert taylor_regret_bound(3.0) == 1.0
    assert taylor_regret_bound(6.0, 0.5) == 1.125
    assert taylor_regret_bound(6.0, 0.5, 0.0) == 0.125
    assert taylor_regret_bound(6.0, predicted=0.5) == 1.125


def test_the_combined_bound_takes_the_better_one():
    """M²/(8κ) for small M against κ, M/3 for nearly flat q; a given deviation replaces M/2."""
    assert combined_regret_bound(0.5, -1.0) == 0.25 / 16
    assert combined_regret_bound(3.0, -1e-3) == 1.0
    assert combined_regret_bound(0.5, -1.0, 0.125) == 0.125**2 / 4
    assert combined_regret_bound(3.0, 5.0, 0.125) == 0.125
    assert combined_regret_bound(3.0, 5.0) == 1.0
    assert combined_regret_bound(6.0, -1.0, 100.0, 0.5, 0.0) == 0.125
    assert combined_regret_bound(6.0, -1.0, 100.0, 0.0, 0.5) == 0.125
    assert combined_regret_bound(6.0, -1.0, None, 0.5, 0.0) == 0.125
    assert combined_regret_bound([0.5, 6.0], -1.0, alpha=[1.0, 0.5], predicted=0.0).tolist() == [1 / 64, 0.125]


def test_the_global_bound_is_never_better_than_the_partition_sum(paths):
    nodes = np.linspace(0, 1, 513)
    deviation = curvature_deviation(nodes, paths.on(nodes, 2), paths.cell_constants(nodes)).upper
    M = paths.bound_of(3)
    assert (deviation <= taylor_deviation_bound(M) * (1 + 1e-12) + (M + paths.fourth / 512) / 512).all()


def test_bad_arguments_are_refused(refuses):
    negative = "M is negative: it bounds a magnitude, give zero or more"
    with refuses(negative):
        taylor_deviation_bound(-1.0)
    with refuses(negative):
        taylor_regret_bound(-1.0)
    with refuses(negative):
        taylor_scale_bound(-1.0, -1.0)
    with refuses(negative):
        combined_regret_bound(-1.0, -1.0)
    with refuses("alpha lies outside [0, 1]: scales are fractions of the update"):
        taylor_deviation_bound(1.0, 1.5)
    with refuses("alpha lies outside [0, 1]: scales are fractions of the update"):
        taylor_regret_bound(1.0, 1.5)
    with refuses("predicted lies outside [0, 1]: scales are fractions of the update"):
        taylor_regret_bound(1.0, 1.0, 1.5)
    with refuses("deviation is negative: it bounds a magnitude, give zero or more"):
        combined_regret_bound(1.0, -1.0, -1.0)
    with refuses("M is NaN or infinite: leave such updates out"):
        taylor_deviation_bound(np.nan)
    with refuses("alpha is NaN or infinite: leave such updates out"):
        taylor_deviation_bound(1.0, np.nan)
    with refuses("M is NaN or infinite: leave such updates out"):
        taylor_regret_bound(np.nan)
    with refuses("alpha is NaN or infinite: leave such updates out"):
        taylor_regret_bound(1.0, np.nan)
    with refuses("predicted is NaN or infinite: leave such updates out"):
        taylor_regret_bound(1.0, 1.0, np.nan)
    names = {"M": 1.0, "quadratic": -1.0, "alpha": 1.0}
    for name in names:
        with refuses(f"{name} is NaN or infinite: leave such updates out"):
            taylor_scale_bound(**{**names, name: np.nan})
    names["predicted"] = 1.0
    for name in names:
        with refuses(f"{name} is NaN or infinite: leave such updates out"):
            combined_regret_bound(**{**names, name: np.nan})
    with refuses("shapes differ (taylor (2,), deviation (3,)): give one entry per update in each"):
        combined_regret_bound([1.0, 1.0], -1.0, [1.0, 1.0, 1.0])
