"""Arguments that no path can have, each refused in one line that names it; what importing the package needs."""

import subprocess
import sys

import numpy as np
import pytest

from loopscope import path
from loopscope.errors import LoopscopeError

HUGE = 1.7e308
NODES, FLAT = [0.0, 0.25, 1.0], [0.0, 0.0, 0.0]

CASES = [
    (lambda: path.classify(np.nan, 1.0), "slope is NaN or infinite"),
    (lambda: path.classify([1.0, 2.0], [1.0]), "shapes differ (slope (2,), gain (1,))"),
    (lambda: path.classify(True, 1.0), "slope has dtype bool"),
    (lambda: path.classify([[0.0, 1.0], [np.nan, 2.0]], 1.0), "slope is NaN or infinite at index [1, 0]"),
    (lambda: path.exceeds_margin(1.0, -1.0, margin=-1e-09), "margin is -1e-09"),
    (lambda: path.exceeds_margin(1.0, -1.0, margin=np.nan), "margin is nan"),
    (lambda: path.predict(1.0, np.inf), "quadratic is NaN or infinite"),
    (lambda: path.endpoint_prediction(HUGE, HUGE), "q(alpha) exceeds float64"),
    (lambda: path.quadratic_value([0.0, 0.5, 1.0], [1.0, 2.0], [1.0, 2.0]), "alpha (3,), slope (2,) and quadratic (2,"),
    (lambda: path.oracles([0.0, 0.5], [0.0, 0.0]), "grid ends at 0.5"),
    (lambda: path.oracles([0.0, 1.0], [HUGE, -HUGE]), "the gain over the full update exceeds float64"),
    (lambda: path.uniform_grid(1), "points is 1"),
    (lambda: path.grid_optimum([0.5, 1.0], [0.0, 0.0]), "grid starts at 0.5"),
    (lambda: path.grid_optimum([0.0], [0.0]), "grid has shape (1,)"),
    (lambda: path.grid_optimum([0.0, 0.5, 0.5, 1.0], np.zeros(4)), "grid does not increase at index [1]"),
    (lambda: path.nearest_action(NODES, [0.0, 1 + 1e-15]), "scale lies outside [0, 1] at index [1]"),
    (lambda: path.grid_regret(NODES, [0.0, 0.0], 0.5), "values has shape (2,) for 3 scales"),
    (lambda: path.grid_regret([0.0, 1.0], [-HUGE, HUGE], 0.0), "the regret exceeds float64"),
    (lambda: path.scale_bound(-1.0, -1.0), "deviation is negative"),
    (lambda: path.taylor_scale_bound(-1.0, -1.0), "M is negative"),
    (lambda: path.beneficial_lower_bound(1.5, 1.0, 1.0), "alpha lies outside [0, 1]"),
    (lambda: path.beneficial_lower_bound(1.0, -HUGE, HUGE), "the lower bound exceeds float64"),
    (lambda: path.beneficial_range(1.0, -1.0), "L_D is negative"),
    (lambda: path.safe_scale(1.0, 1.0, fraction=1.0), "fraction is 1.0"),
    (lambda: path.curvature_deviation(NODES, FLAT, [1.0, 1.0, 1.0]), "lipschitz has shape (3,) for 2 cells"),
    (lambda: path.curvature_deviation(NODES, [[0.0, 0.0, 0.0], [1.0, 1.0, 3.0]], [0.0, 2.6]), "lipschitz is smaller t"),
    (lambda: path.curvature_deviation(NODES, [1.0, 1.0, -1.0], [0.0, 2.6]), "lipschitz is smaller than the sampled ch"),
    (lambda: path.curvature_deviation(NODES, [[1000000000.0] * 3, [0.0, 0.0, 1.0]], 0.0), "lipschitz is smaller than"),
    (lambda: path.curvature_deviation(NODES, [HUGE, HUGE, -HUGE], HUGE), "lipschitz is smaller than the sampled chang"),
    (lambda: path.curvature_deviation([0.0, 0.9, 1.0], [-8e+307, 8e+307, 8e+307], 1.79e+308), "the deviation exceeds"),
    (lambda: path.residual_envelope(NODES, FLAT, 0.0, -1.0), "lipschitz is negative"),
    (lambda: path.residual_envelope([0.0, 1.0], [0.0, -HUGE], HUGE, 0.0), "the residual exceeds float64"),
    (lambda: path.residual_envelope(NODES, np.zeros((2, 3)), np.zeros(3), 0.0), "shapes differ (slopes (2,), quadrati"),
    (lambda: path.pathwise_decomposition([0.0, 1.5], [0.0, 0.0], 0.0, 0.0), "nodes end at 1.5"),
    (lambda: path.pathwise_decomposition(NODES, FLAT, -HUGE, HUGE), "the decomposition exceeds float64"),
    (lambda: path.root_sandwich(1.0, 0.0, 1.0), "mu is not positive"),
    (lambda: path.root_sandwich(1.0, 2.0, 1.9), "mu exceeds L_D"),
    (lambda: path.sampled_crossing([0.0, 1.0], [0.1, 1.0]), "gains at scale 0 are not zero"),
    (lambda: path.sampled_crossing([0.0, 1.0], [[0.0, 1.0]] * 2).contains([0.1, 0.2, 0.3]), "shapes differ (root (3,)"),
    (lambda: path.concave_boundary(lambda a, rows: a, 1.0), "slope has shape ()"),
    (lambda: path.concave_boundary(lambda a, rows: 0.0, [1.0, 1.0]), "value returned shape () for 2 scales"),
    (lambda: path.concave_boundary(lambda a, rows: a, [1.0], tolerance=0), "tolerance is 0"),
    (lambda: path.concave_optimum(lambda a, rows: a * np.nan, 1), "the result of derivative is NaN or infinite at ind"),
    (lambda: path.concave_optimum(lambda a, rows: 0.5 - a, 1, tolerance=9e-16), "tolerance is 9e-16"),
    (lambda: path.refine_bracket(0.5, 0.5, 1.0, -1.0, 1.0, 4.0), "lower does not lie below upper"),
    (lambda: path.refine_bracket(0.0, 1.1, 1.0, -1.0, 1.0, 4.0), "the bracket leaves [0, 1]"),
    (lambda: path.refine_bracket(0.0, 1.0, 0.0, -1.0, 1.0, 4.0), "slope_lower is not positive"),
    (lambda: path.refine_bracket(0.0, 1.0, 1.0, 1e-09, 1.0, 4.0), "slope_upper is positive"),
    (lambda: path.refine_bracket(0.0, 1.0, 1.0, -1.0, 2.0 + 1e-09, 3.0), "no zero of φ' fits both the slopes and the"),
    (lambda: path.refine_bracket(0.0, 1.0, 1.0, -1.0, 1.0, 2.0 - 1e-09), "no zero of φ' fits both the slopes and the"),
    (lambda: path.scale_error_interval(0.5, 0.6, 0.5), "lower exceeds upper"),
    (lambda: path.search_optimum(lambda a, r: a, lambda a, r: a, [0.5], locations=2), "locations is 2"),
    (lambda: path.search_optimum(lambda a, r: a, lambda a, r: a, 0.5), "predicted has shape ()"),
    (lambda: path.search_optimum(lambda a, r: np.where(a == 0.3, np.nan, a), lambda a, r: 1.0 + 0 * a, [0.3]),
     "the result of value is NaN or infinite at index [0]"),
]  # fmt: skip


def test_each_unsuitable_argument_is_refused_in_its_line():
    for call, line in CASES:
        with np.errstate(all="raise"), pytest.raises(LoopscopeError) as caught:
            call()
        found, _, remedy = str(caught.value).partition(": ")
        assert found.startswith(line)
        assert remedy
        assert "\n" not in remedy


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
