"""Mathematics on φ given numbers (NumPy float64, no torch, no files).

φ(α) = U(H + αD) - U(H) is the utility gain along one recurrent update, α in [0, 1] its scale. Every function
here takes numbers of φ (its slope A = φ'(0), Q = φ''(0)/2, gain ΔU = φ(1), samples, bounds of derivatives)
for one update or for many at once, and implements the definition or statement that its docstring names.

Arguments run over updates on their leading axes; scalars in give scalars out. Where a statement supposes a
sign (A > 0, Q < 0) that an update does not have, its result is NaN or the trivial bound, as documented;
arguments that no path can have raise `LoopscopeError`. Bounds hold in exact arithmetic, evaluated in float64.
"""

from loopscope.path.arrays import Interval as Interval
from loopscope.path.boundary import concave_boundary as concave_boundary
from loopscope.path.boundary import root_sandwich as root_sandwich
from loopscope.path.boundary import sampled_crossing as sampled_crossing
from loopscope.path.bounds import beneficial_lower_bound as beneficial_lower_bound
from loopscope.path.bounds import beneficial_range as beneficial_range
from loopscope.path.bounds import curvature_deviation as curvature_deviation
from loopscope.path.bounds import paper_envelope as paper_envelope
from loopscope.path.bounds import pathwise_decomposition as pathwise_decomposition
from loopscope.path.bounds import regret_bound as regret_bound
from loopscope.path.bounds import residual_envelope as residual_envelope
from loopscope.path.bounds import safe_scale as safe_scale
from loopscope.path.bounds import scale_bound as scale_bound
from loopscope.path.bounds import taylor_scale_bound as taylor_scale_bound
from loopscope.path.bounds import taylor_value_bound as taylor_value_bound
from loopscope.path.optimum import Location as Location
from loopscope.path.optimum import concave_optimum as concave_optimum
from loopscope.path.optimum import refine_bracket as refine_bracket
from loopscope.path.optimum import scale_error_interval as scale_error_interval
from loopscope.path.optimum import search_optimum as search_optimum
from loopscope.path.outcomes import CONTRACTION as CONTRACTION
from loopscope.path.outcomes import CURVATURE_SCALES as CURVATURE_SCALES
from loopscope.path.outcomes import DIFFERENCE_SPACINGS as DIFFERENCE_SPACINGS
from loopscope.path.outcomes import EFFECT_MARGIN as EFFECT_MARGIN
from loopscope.path.outcomes import GRID as GRID
from loopscope.path.outcomes import GRID_POINTS as GRID_POINTS
from loopscope.path.outcomes import PATH_NODES as PATH_NODES
from loopscope.path.outcomes import GridOptimum as GridOptimum
from loopscope.path.outcomes import Outcome as Outcome
from loopscope.path.outcomes import classify as classify
from loopscope.path.outcomes import endpoint_prediction as endpoint_prediction
from loopscope.path.outcomes import exceeds_margin as exceeds_margin
from loopscope.path.outcomes import grid_optimum as grid_optimum
from loopscope.path.outcomes import grid_regret as grid_regret
from loopscope.path.outcomes import nearest_action as nearest_action
from loopscope.path.outcomes import oracles as oracles
from loopscope.path.outcomes import predict as predict
from loopscope.path.outcomes import predicted_scale as predicted_scale
from loopscope.path.outcomes import quadratic_root as quadratic_root
from loopscope.path.outcomes import quadratic_value as quadratic_value
from loopscope.path.outcomes import scale_case as scale_case
from loopscope.path.outcomes import scales_up_to as scales_up_to
from loopscope.path.outcomes import uniform_grid as uniform_grid
