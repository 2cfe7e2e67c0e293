"""Arguments that no path can have, each refused in one line that names it; what importing the package needs."""

import subprocess
import sys

import numpy as np
import pytest

from loopscope import path
from loopscope.errors import LoopscopeError

HUGE = 1.7e308
MISSING = "is NaN or infinite: leave such updates out"
NEGATIVE = "is negative: it bounds a magnitude, give zero or more"
OUTSIDE = "lies outside [0, 1]: scales are fractions of the update"
BEYOND = "exceeds float64: rescale the utility"
PER_UPDATE = "give one entry per update in each"
PER_SCALE = "return one number per scale"
AT_0 = "is NaN or infinite at index [0]: leave such updates out"
OF_UPDATE = "scales are fractions of the update"
TWO = "give at least the two scales 0 and 1 on one axis"
WIDTH = "give a width between 1e-15 and 1"
EACH = "give one slope per update on one axis"
NODES, FLAT = [0.0, 0.25, 1.0], [0.0, 0.0, 0.0]
REFUTED = "lipschitz is smaller than the sampled change of curvature on cell 1: give constants valid on the whole cell"
CONTRADICTED = "no zero of φ' fits both the slopes and the curvature bounds: mu and nu must hold on the whole bracket"

CASES = [
    (lambda: path.classify(np.nan, 1.0), f"slope {MISSING}"),
    (lambda: path.classify([1.0, 2.0], [1.0]), f"shapes differ (slope (2,), gain (1,)): {PER_UPDATE}"),
    (lambda: path.classify(True, 1.0), "slope has dtype bool: give real numbers"),
    (
        lambda: path.classify([[0.0, 1.0], [np.nan, 2.0]], 1.0),
        "slope is NaN or infinite at index [1, 0]: leave such updates out",
    ),
    (lambda: path.exceeds_margin(1.0, -1.0, margin=-1e-9), "margin is -1e-09: give zero or a positive number"),
    (lambda: path.exceeds_margin(1.0, -1.0, margin=np.nan), "margin is nan: give zero or a positive number"),
    (lambda: path.predict(1.0, np.inf), f"quadratic {MISSING}"),
    (lambda: path.endpoint_prediction(HUGE, HUGE), f"q(alpha) {BEYOND}"),
    (
        lambda: path.quadratic_value([0.0, 0.5, 1.0], [1.0, 2.0], [1.0, 2.0]),
        "alpha (3,), slope (2,) and quadratic (2,) do not broadcast: "
        "give slope[:, None] and quadratic[:, None] to evaluate many updates on a grid",
    ),
    (lambda: path.oracles([0.0, 0.5], [0.0, 0.0]), "grid ends at 0.5: it must contain 1, the full update"),
    (lambda: path.oracles([0.0, 1.0], [HUGE, -HUGE]), f"the gain over the full update {BEYOND}"),
    (lambda: path.uniform_grid(1), "points is 1: a grid has at least the two scales 0 and 1"),
    (lambda: path.grid_optimum([0.5, 1.0], [0.0, 0.0]), "grid starts at 0.5: it must contain 0, the current state"),
    (lambda: path.grid_optimum([0.0], [0.0]), f"grid has shape (1,): {TWO}"),
    (
        lambda: path.grid_optimum([0.0, 0.5, 0.5, 1.0], np.zeros(4)),
        "grid does not increase at index [1]: sort it and drop repeated scales",
    ),
    (lambda: path.nearest_action(NODES, [0.0, 1 + 1e-15]), f"scale lies outside [0, 1] at index [1]: {OF_UPDATE}"),
    (
        lambda: path.grid_regret(NODES, [0.0, 0.0], 0.5),
        "values has shape (2,) for 3 scales: give one entry per scale on the last axis",
    ),
    (lambda: path.grid_regret([0.0, 1.0], [-HUGE, HUGE], 0.0), f"the regret {BEYOND}"),
    (lambda: path.scale_bound(-1.0, -1.0), f"deviation {NEGATIVE}"),
    (lambda: path.taylor_scale_bound(-1.0, -1.0), f"M {NEGATIVE}"),
    (lambda: path.beneficial_lower_bound(1.5, 1.0, 1.0), f"alpha {OUTSIDE}"),
    (lambda: path.beneficial_lower_bound(1.0, -HUGE, HUGE), f"the lower bound {BEYOND}"),
    (lambda: path.beneficial_range(1.0, -1.0), f"L_D {NEGATIVE}"),
    (lambda: path.safe_scale(1.0, 1.0, fraction=1.0), "fraction is 1.0: give a number between 0 and 1, such as 0.9"),
    (
        lambda: path.curvature_deviation(NODES, FLAT, [1.0, 1.0, 1.0]),
        "lipschitz has shape (3,) for 2 cells: give one constant per cell on the last axis",
    ),
    (lambda: path.curvature_deviation(NODES, [[0.0, 0.0, 0.0], [1.0, 1.0, 3.0]], [0.0, 2.6]), REFUTED),
    (lambda: path.curvature_deviation(NODES, [1.0, 1.0, -1.0], [0.0, 2.6]), REFUTED),
    (lambda: path.curvature_deviation(NODES, [[1e9] * 3, [0.0, 0.0, 1.0]], 0.0), REFUTED),
    (lambda: path.curvature_deviation(NODES, [HUGE, HUGE, -HUGE], HUGE), REFUTED),
    (
        lambda: path.curvature_deviation([0.0, 0.9, 1.0], [-0.8e308, 0.8e308, 0.8e308], 1.79e308),
        f"the deviation {BEYOND}",
    ),
    (lambda: path.residual_envelope(NODES, FLAT, 0.0, -1.0), f"lipschitz {NEGATIVE}"),
    (lambda: path.residual_envelope([0.0, 1.0], [0.0, -HUGE], HUGE, 0.0), f"the residual {BEYOND}"),
    (
        lambda: path.residual_envelope(NODES, np.zeros((2, 3)), np.zeros(3), 0.0),
        f"shapes differ (slopes (2,), quadratic (3,)): {PER_UPDATE}",
    ),
    (lambda: path.pathwise_decomposition([0.0, 1.5], [0.0, 0.0], 0.0, 0.0), "nodes end at 1.5: scales lie in [0, 1]"),
    (lambda: path.pathwise_decomposition(NODES, FLAT, -HUGE, HUGE), f"the decomposition {BEYOND}"),
    (
        lambda: path.root_sandwich(1.0, 0.0, 1.0),
        "mu is not positive: the sandwich needs curvature that stays below zero",
    ),
    (lambda: path.root_sandwich(1.0, 2.0, 1.9), "mu exceeds L_D: mu bounds -φ'' from below and L_D from above"),
    (
        lambda: path.sampled_crossing([0.0, 1.0], [0.1, 1.0]),
        "gains at scale 0 are not zero: subtract the utility of the current state",
    ),
    (
        lambda: path.sampled_crossing([0.0, 1.0], [[0.0, 1.0]] * 2).contains([0.1, 0.2, 0.3]),
        f"shapes differ (root (3,), crossing (2,)): {PER_UPDATE}",
    ),
    (lambda: path.concave_boundary(lambda a, rows: a, 1.0), f"slope has shape (): {EACH}"),
    (
        lambda: path.concave_boundary(lambda a, rows: 0.0, [1.0, 1.0]),
        f"value returned shape () for 2 scales: {PER_SCALE}",
    ),
    (lambda: path.concave_boundary(lambda a, rows: a, [1.0], tolerance=0), f"tolerance is 0: {WIDTH}"),
    (lambda: path.concave_optimum(lambda a, rows: a * np.nan, 1), f"the result of derivative {AT_0}"),
    (lambda: path.concave_optimum(lambda a, rows: 0.5 - a, 1, tolerance=0.9e-15), f"tolerance is 9e-16: {WIDTH}"),
    (
        lambda: path.refine_bracket(0.5, 0.5, 1.0, -1.0, 1.0, 4.0),
        "lower does not lie below upper: give an interior bracket",
    ),
    (lambda: path.refine_bracket(0.0, 1.1, 1.0, -1.0, 1.0, 4.0), f"the bracket leaves [0, 1]: {OF_UPDATE}"),
    (
        lambda: path.refine_bracket(0.0, 1.0, 0.0, -1.0, 1.0, 4.0),
        "slope_lower is not positive: the path must rise at the lower end",
    ),
    (
        lambda: path.refine_bracket(0.0, 1.0, 1.0, 1e-9, 1.0, 4.0),
        "slope_upper is positive: the path must not rise at the upper end",
    ),
    (lambda: path.refine_bracket(0.0, 1.0, 1.0, -1.0, 2.0 + 1e-9, 3.0), CONTRADICTED),
    (lambda: path.refine_bracket(0.0, 1.0, 1.0, -1.0, 1.0, 2.0 - 1e-9), CONTRADICTED),
    (lambda: path.scale_error_interval(0.5, 0.6, 0.5), "lower exceeds upper: give a bracket"),
    (
        lambda: path.search_optimum(lambda a, r: a, lambda a, r: a, [0.5], locations=2),
        "locations is 2: give at least 3",
    ),
    (
        lambda: path.search_optimum(lambda a, r: a, lambda a, r: a, 0.5),
        "predicted has shape (): give one scale per update on one axis",
    ),
    (
        lambda: path.search_optimum(lambda a, r: np.where(a == 0.3, np.nan, a), lambda a, r: 1.0 + 0 * a, [0.3]),
        f"the result of value {AT_0}",
    ),
]


def test_each_unsuitable_argument_is_refused_in_its_line():
    for call, line in CASES:
        with np.errstate(all="raise"), pytest.raises(LoopscopeError) as caught:
            call()
        assert str(caught.value) == line


def test_objects_that_refuse_conversion_are_refused():
    class Stubborn:
        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("detach it first\nsecond line")

    for value, reason in ((Stubborn(), "detach it first"), ([[1.0], [1.0, 2.0]], r"\S[^\n]*")):
        with pytest.raises(LoopscopeError, match=f"^gain is not an array of numbers: {reason}$"):
            path.classify(1.0, value)


def test_importing_it_needs_numpy_alone():
    probe = "import sys, loopscope.path; sys.exit(bool({'torch', 'scipy', 'polars'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0
