"""Mathematics on φ given numbers (NumPy float64, no torch, no files).

φ(α) = U(H + αD) - U(H) is the utility gain along one recurrent update, α in [0, 1] its scale. Every function
here takes numbers of φ (its slope A = φ'(0), Q = φ''(0)/2, gain ΔU = φ(1), samples, bounds of derivatives)
for one update or for many at once, and implements the definition or statement that its docstring names.

Arguments run over updates on their leading axes; scalars in give scalars out. Where a statement supposes a
sign (A > 0, Q < 0) that an update does not have, its result is NaN or the trivial bound, as documented;
arguments that no path can have raise `LoopscopeError`. Bounds hold in exact arithmetic, evaluated in float64.
"""

from loopscope.path.beneficial import (
    SAFE_FRACTION,
    BeneficialRange,
    beneficial_lower_bound,
    beneficial_range,
    safe_scale,
)
from loopscope.path.boundary import (
    ConcaveBoundary,
    RootSandwich,
    SampledCrossing,
    concave_boundary,
    root_sandwich,
    sampled_crossing,
)
from loopscope.path.bounds import (
    EndpointBound,
    combined_regret_bound,
    diameter_bound,
    endpoint_bound,
    pointwise_scale_bound,
    regret_bound,
    residual_envelope,
    scale_bound,
    taylor_deviation_bound,
    taylor_regret_bound,
    taylor_scale_bound,
    taylor_value_bound,
)
from loopscope.path.brackets import Interval, PathFunction, refine_bracket, regret_interval, scale_error_interval
from loopscope.path.concave_optimum import ConcaveOptimum, Location, concave_optimum
from loopscope.path.decomposition import PathwiseDecomposition, pathwise_decomposition
from loopscope.path.deviation import DeviationBounds, curvature_deviation, deviation_at, deviation_profile
from loopscope.path.general_optimum import CandidateSearch, search_optimum
from loopscope.path.grids import (
    CURVATURE_SCALES,
    DIFFERENCE_SPACINGS,
    GRID,
    GRID_POINTS,
    PATH_NODES,
    GridAction,
    GridOptimum,
    GridResolution,
    best_of,
    grid_optimum,
    grid_regret,
    grid_resolution,
    nearest_action,
    scales_up_to,
    uniform_grid,
)
from loopscope.path.outcomes import (
    CONTRACTION,
    EFFECT_MARGIN,
    Oracles,
    Outcome,
    Recovery,
    classify,
    exceeds_margin,
    oracles,
    recovery,
    within_margin,
)
from loopscope.path.paper_envelope import PaperEnvelope, paper_envelope
from loopscope.path.predicted_scale import (
    QuadraticPrediction,
    endpoint_prediction,
    predict,
    predicted_scale,
    quadratic_root,
    quadratic_value,
    scale_case,
)

__all__ = [
    "CONTRACTION",
    "CURVATURE_SCALES",
    "DIFFERENCE_SPACINGS",
    "EFFECT_MARGIN",
    "GRID",
    "GRID_POINTS",
    "PATH_NODES",
    "SAFE_FRACTION",
    "BeneficialRange",
    "CandidateSearch",
    "ConcaveBoundary",
    "ConcaveOptimum",
    "DeviationBounds",
    "EndpointBound",
    "GridAction",
    "GridOptimum",
    "GridResolution",
    "Interval",
    "Location",
    "Oracles",
    "Outcome",
    "PaperEnvelope",
    "PathFunction",
    "PathwiseDecomposition",
    "QuadraticPrediction",
    "Recovery",
    "RootSandwich",
    "SampledCrossing",
    "beneficial_lower_bound",
    "beneficial_range",
    "best_of",
    "classify",
    "combined_regret_bound",
    "concave_boundary",
    "concave_optimum",
    "curvature_deviation",
    "deviation_at",
    "deviation_profile",
    "diameter_bound",
    "endpoint_bound",
    "endpoint_prediction",
    "exceeds_margin",
    "grid_optimum",
    "grid_regret",
    "grid_resolution",
    "nearest_action",
    "oracles",
    "paper_envelope",
    "pathwise_decomposition",
    "pointwise_scale_bound",
    "predict",
    "predicted_scale",
    "quadratic_root",
    "quadratic_value",
    "recovery",
    "refine_bracket",
    "regret_bound",
    "regret_interval",
    "residual_envelope",
    "root_sandwich",
    "safe_scale",
    "sampled_crossing",
    "scale_bound",
    "scale_case",
    "scale_error_interval",
    "scales_up_to",
    "search_optimum",
    "taylor_deviation_bound",
    "taylor_regret_bound",
    "taylor_scale_bound",
    "taylor_value_bound",
    "uniform_grid",
    "within_margin",
]
