"""A path without concavity in FP64: searched adaptively, no bound between samples (level full).

For nonlinear readouts and for the joint option utility (Appendix "Refined numerical optima"): 257 locations with local
refinement, third derivatives with their central differences, and what changes from 129 locations to 257.
"""

from __future__ import annotations

import numpy as np

from loopscope.measure.columns import Columns, array
from loopscope.measure.path_functions import Floats, PathFunctions
from loopscope.path import pathwise_decomposition, predicted_scale, search_optimum
from loopscope.path.grids import DIFFERENCE_SPACINGS, PATH_NODES
from loopscope.readout.path import UtilityPath


def searched_columns(path: UtilityPath) -> tuple[Columns, Columns]:
    """The FP64 columns of every question, without their prefix, and the path at the nodes."""
    nodes = np.linspace(0.0, 1.0, PATH_NODES)
    phi, first, second, third = (array(part) for part in path.derivatives(nodes.tolist(), 3).stack)
    slope, quadratic, gain = first[:, 0], 0.5 * second[:, 0], phi[:, -1]
    functions = PathFunctions(path, nodes, phi, first)
    predicted = predicted_scale(slope, quadratic)
    fine = search_optimum(functions.value, functions.derivative, predicted, locations=PATH_NODES)
    coarse = search_optimum(functions.value, functions.derivative, predicted, locations=(PATH_NODES + 1) // 2)
    kinds = ["left" if alpha == 0.0 else "right" if alpha == 1.0 else "interior" for alpha in fine.alpha]
    half = slice(None, None, 2)
    columns: Columns = {
        "slope": slope,
        "quadratic": quadratic,
        "gain": gain,
        "decomposition_residual": pathwise_decomposition(nodes, second, slope, gain).residual,
        "sampled_curvature": (-second).max(1),
        "sampled_convexity": second.max(1),
        "sampled_third": np.abs(third).max(1),
        "optimum_low": fine.alpha,
        "optimum_high": fine.alpha,
        "optimum_kind": kinds,
        "optimum_gain_low": fine.value,
        "optimum_gain_high": fine.value,
        "optimum_ceiling": fine.ceiling,
        "predicted_scale": predicted,
        "predicted_gain": fine.predicted_value,
        "evaluations": fine.locations + fine.roots + 1,
        **_third_gaps(path, third[:, PATH_NODES // 2]),
        "refined_gain_change": np.abs(fine.value - coarse.value),
        "refined_scale_change": np.abs(fine.alpha - coarse.alpha),
        "refined_curvature_change": np.abs((-second).max(1) - (-second[:, half]).max(1)),
        "refined_third_change": np.abs(np.abs(third).max(1) - np.abs(third[:, half]).max(1)),
    }
    return columns, {"gain": phi, "slope": first, "curvature": second, "third": third}


def _third_gaps(path: UtilityPath, middle_B: Floats) -> Columns:
    """φ'''(1/2) against central differences of φ'' around it, at the paper's three spacings: [B, 3] each."""
    sides = [side for spacing in DIFFERENCE_SPACINGS for side in (0.5 - spacing, 0.5 + spacing)]
    second = array(path.derivatives(sides, 2).stack[2])
    steps = 2.0 * np.array(DIFFERENCE_SPACINGS)
    absolute = np.abs(middle_B[:, None] - (second[:, 1::2] - second[:, ::2]) / steps)
    scale = np.abs(middle_B)[:, None]
    relative = np.divide(absolute, scale, out=np.zeros_like(absolute), where=scale > 0)
    return {"third_absolute_gap": absolute, "third_relative_gap": relative}
