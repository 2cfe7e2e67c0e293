"""Mathematics on φ given numbers (NumPy float64, no torch, no files).

φ(α) = U(H + αD) - U(H) is the utility gain along one recurrent update, α in [0, 1] its scale. Every function
here takes numbers of φ (its slope A = φ'(0), Q = φ''(0)/2, gain ΔU = φ(1), samples, bounds of derivatives)
for one update or for many at once, and implements the definition or statement that its docstring names.

Arguments run over updates on their leading axes; scalars in give scalars out. Where a statement supposes a
sign (A > 0, Q < 0) that an update does not have, its result is NaN or the trivial bound, as documented;
arguments that no path can have raise `LoopscopeError`. Bounds hold in exact arithmetic, evaluated in float64.
"""

from loopscope.path.arrays import Interval
from loopscope.path.boundary import concave_boundary, root_sandwich, sampled_crossing
from loopscope.path.bounds import (
    beneficial_lower_bound,
    beneficial_range,
    curvature_deviation,
    paper_envelope,
    pathwise_decomposition,
    regret_bound,
    residual_envelope,
    safe_scale,
    scale_bound,
    taylor_scale_bound,
    taylor_value_bound,
)
from loopscope.path.optimum import (
    Location,
    concave_optimum,
    refine_bracket,
    scale_error_interval,
    search_optimum,
)
from loopscope.path.outcomes import (
    CONTRACTION,
    CURVATURE_SCALES,
    DIFFERENCE_SPACINGS,
    EFFECT_MARGIN,
    GRID,
    GRID_POINTS,
    PATH_NODES,
    GridOptimum,
    Outcome,
    classify,
    endpoint_prediction,
    exceeds_margin,
    grid_optimum,
    grid_regret,
    nearest_action,
    oracles,
    predict,
    predicted_scale,
    quadratic_root,
    quadratic_value,
    scale_case,
    scales_up_to,
    uniform_grid,
)

__all__ = [
    "CONTRACTION",
    "CURVATURE_SCALES",
    "DIFFERENCE_SPACINGS",
    "EFFECT_MARGIN",
    "GRID",
    "GRID_POINTS",
    "PATH_NODES",
    "GridOptimum",
    "Interval",
    "Location",
    "Outcome",
    "beneficial_lower_bound",
    "beneficial_range",
    "classify",
    "concave_boundary",
    "concave_optimum",
    "curvature_deviation",
    "endpoint_prediction",
    "exceeds_margin",
    "grid_optimum",
    "grid_regret",
    "nearest_action",
    "oracles",
    "paper_envelope",
    "pathwise_decomposition",
    "predict",
    "predicted_scale",
    "quadratic_root",
    "quadratic_value",
    "refine_bracket",
    "regret_bound",
    "residual_envelope",
    "root_sandwich",
    "safe_scale",
    "sampled_crossing",
    "scale_bound",
    "scale_case",
    "scale_error_interval",
    "scales_up_to",
    "search_optimum",
    "taylor_scale_bound",
    "taylor_value_bound",
    "uniform_grid",
]
