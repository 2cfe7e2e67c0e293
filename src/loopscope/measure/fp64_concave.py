"""A concave path in FP64: envelopes that hold between samples, and what follows from them (level full).

For the affine readout of a reference solution (Appendices "FP64 Path Analysis" and "Curvature-Bound Evaluation"):
partition sums, signed residual, bracketed optimum, safe scale, progress boundary.
"""

from __future__ import annotations

import numpy as np

from loopscope.measure.columns import Columns, array
from loopscope.measure.path_functions import Floats, PathFunctions
from loopscope.path import (
    Location,
    concave_boundary,
    concave_optimum,
    curvature_deviation,
    pathwise_decomposition,
    predicted_scale,
    residual_envelope,
    safe_scale,
)
from loopscope.path.grids import PATH_NODES
from loopscope.readout.affine.envelope import Envelope
from loopscope.readout.affine.path import AffinePath

_KINDS = {Location.LEFT_ENDPOINT: "left", Location.INTERIOR: "interior", Location.RIGHT_ENDPOINT: "right"}


def concave_columns(path: AffinePath) -> tuple[Columns, Columns]:
    """The FP64 columns of every question, without their prefix, and the path at the nodes."""
    envelope = path.envelope(PATH_NODES - 1)
    nodes = array(envelope.nodes)
    phi, first, second, third, _ = (array(part) for part in envelope.derivatives.stack)
    slope, quadratic, gain = first[:, 0], 0.5 * second[:, 0], phi[:, -1]
    lipschitz = array(envelope.third)
    deviation = curvature_deviation(nodes, second, lipschitz)
    bound = array(envelope.L_D)
    functions = PathFunctions(path, nodes, phi, first)
    predicted = predicted_scale(slope, quadratic)
    rows = np.arange(path.examples)
    columns: Columns = {
        "slope": slope,
        "quadratic": quadratic,
        "gain": gain,
        "decomposition_residual": pathwise_decomposition(nodes, second, slope, gain).residual,
        "kl_residual": gain - (slope - array(path.divergence)),
        "M": array(envelope.M),
        "L_D": bound,
        "mu": array(envelope.mu),
        "C_lower": deviation.lower,
        "C_upper": deviation.upper,
        "S": residual_envelope(nodes, first, quadratic, lipschitz, deviation.upper),
        "sampled_curvature": (-second).max(1),
        "sampled_convexity": second.max(1),
        "sampled_third": np.abs(third).max(1),
        **_optimum(functions, envelope, path.examples),
        "predicted_scale": predicted,
        "predicted_gain": functions.value(predicted, rows),
        **_safe_step(functions, slope, bound),
    }
    return columns, {"gain": phi, "slope": first, "curvature": second, "third": third}


def _optimum(functions: PathFunctions, envelope: Envelope, examples: int) -> Columns:
    """α* in its bracket, and φ(α*) between what concavity allows at the bracket's ends."""
    # The path of an affine readout is concave by its form; slopes that rise by a rounding error say nothing else.
    optimum = concave_optimum(functions.derivative, examples, noise=np.inf)
    rows = np.arange(examples)
    at_lower, at_upper = functions.value(optimum.lower, rows), functions.value(optimum.upper, rows)
    width = optimum.upper - optimum.lower
    highest = np.minimum(
        at_lower + np.maximum(optimum.slope_lower, 0.0) * width,
        at_upper + np.maximum(-optimum.slope_upper, 0.0) * width,
    )
    lowest = np.maximum(at_lower, at_upper)
    mu, nu = _bracket_curvature(envelope, optimum.lower, optimum.upper)
    return {
        "optimum_low": optimum.lower,
        "optimum_high": optimum.upper,
        "optimum_kind": [_KINDS[Location(code)] for code in optimum.location],
        "optimum_gain_low": lowest,
        "optimum_gain_high": np.maximum(highest, lowest),
        "optimum_slope_low": optimum.slope_lower,
        "optimum_slope_high": optimum.slope_upper,
        "optimum_mu": mu,
        "optimum_nu": nu,
        "evaluations": optimum.evaluations,
    }


def _bracket_curvature(envelope: Envelope, lower: Floats, upper: Floats) -> tuple[Floats, Floats]:
    """μ and ν with μ ≤ −φ'' ≤ ν on each bracket: the extremes of the cells that it touches."""
    below, above = array(envelope.curvature_lower), array(envelope.curvature_upper)
    cells = below.shape[1]
    index = np.arange(cells)
    first = np.minimum((lower * cells).astype(int), cells - 1)[:, None]
    last = np.minimum((upper * cells).astype(int), cells - 1)[:, None]
    touched = (index >= first) & (index <= last)
    return np.where(touched, below, np.inf).min(1), np.where(touched, above, -np.inf).max(1)


def _safe_step(functions: PathFunctions, slope: Floats, bound: Floats) -> Columns:
    """The scale selected from the sufficient range and the progress boundary, where A > 0; null elsewhere."""
    improving = slope > 0
    scale = safe_scale(np.where(improving, slope, 1.0), bound)
    boundary = concave_boundary(functions.value, slope, noise=np.inf)
    found = {
        "safe_scale": scale,
        "safe_gain": functions.value(np.where(improving, scale, 0.0), np.arange(slope.size)),
        "boundary_low": boundary.lower,
        "boundary_high": boundary.upper,
    }
    return {name: np.ma.masked_array(values, mask=~improving) for name, values in found.items()}
