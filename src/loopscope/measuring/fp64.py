"""The FP64 path analysis of one update (level full; Appendices "FP64 Path Analysis", "Curvature-Bound Evaluation").

The recurrent endpoints are kept; readout and derivatives are FP64.

An affine readout of a reference solution gives a concave path (`concave_columns`): bounds of its derivatives that hold
between samples, and what follows from them: partition sums, signed residual, bracketed optimum, safe scale, progress
boundary. Every other path is searched adaptively, without such bounds (`searched_columns`; Appendix "Refined numerical
optima"): 257 locations with local refinement, third derivatives with their central differences, and what changes from
129 locations to 257.

Shapes: R sequences, S positions, D hidden width, B questions, K nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from loopscope.measuring.reading import LOGITS
from loopscope.measuring.transfer import Columns, array, stacked
from loopscope.measuring.update import Update
from loopscope.path import (
    CONTRACTION,
    Location,
    concave_boundary,
    concave_optimum,
    curvature_deviation,
    pathwise_decomposition,
    predicted_scale,
    residual_envelope,
    safe_scale,
    search_optimum,
)
from loopscope.path.grids import DIFFERENCE_SPACINGS, PATH_NODES
from loopscope.readout.affine.envelope import Envelope
from loopscope.readout.affine.path import AffinePath
from loopscope.readout.path import UtilityPath

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Indices: TypeAlias = np.ndarray[Any, np.dtype[np.intp]]


@dataclass(frozen=True)
class Analysis:
    """Columns of `questions` and of `paths`, one row per question."""

    questions: Columns
    nodes: Columns


def analyse(update: Update) -> Analysis:
    """The FP64 columns of every question of a batch, as many at a time as their FP64 logits can be kept."""
    most = max(1, LOGITS // update.readout.model.vocabulary_size)
    found = [_analyse_group(group) for group in update.groups(most)]
    return Analysis(stacked([group.questions for group in found]), stacked([group.nodes for group in found]))


def _analyse_group(update: Update) -> Analysis:
    path = update.readout.fp64_path(update)
    found, nodes = concave_columns(path) if isinstance(path, AffinePath) else searched_columns(path)
    found["state_gap"] = _state_gap(update)
    quarter = int(CONTRACTION * (PATH_NODES - 1))
    found["quarter_gain"] = nodes["gain"][:, quarter]
    alpha = np.broadcast_to(np.linspace(0.0, 1.0, PATH_NODES), nodes["gain"].shape)
    return Analysis({f"fp64_{name}": values for name, values in found.items()}, {"alpha": alpha, **nodes})


def _state_gap(update: Update) -> Floats:
    """The largest entry of |H + D − H⁺| at a question's valid positions, in the arithmetic of the path."""
    layout, h, h_plus = update.layout, update.before_RSD.double(), update.after_RSD.double()
    gap_RS = (h + (h_plus - h) - h_plus).abs().amax(2) * layout.batch.attention_mask
    found = np.zeros(len(layout.questions))
    np.maximum.at(found, array(layout.question_R), array(gap_RS.amax(1)))
    return found


class PathFunctions:
    """φ and φ' of chosen questions; what is known of a path is not evaluated again.

    A search asks for φ and φ' at the same places one after the other, and at many nodes of the partition.
    """

    def __init__(self, path: UtilityPath, nodes_K: Floats, value_BK: Floats, slope_BK: Floats) -> None:
        self._path = path
        self._known: dict[tuple[int, float], tuple[float, float]] = {}
        scales = nodes_K.tolist()
        for row, (values, slopes) in enumerate(zip(value_BK.tolist(), slope_BK.tolist(), strict=True)):
            places = ((row, scale) for scale in scales)
            self._known.update(zip(places, zip(values, slopes, strict=True), strict=True))

    def value(self, alpha: Floats, rows: Indices) -> Floats:
        """φ of question rows[k] at scale alpha[k]."""
        return self._at(alpha, rows, 0)

    def derivative(self, alpha: Floats, rows: Indices) -> Floats:
        """φ' of question rows[k] at scale alpha[k]."""
        return self._at(alpha, rows, 1)

    def _at(self, alpha: Floats, rows: Indices, order: int) -> Floats:
        asked = list(zip(rows.tolist(), alpha.tolist(), strict=True))
        missing = [pair for pair in dict.fromkeys(asked) if pair not in self._known]
        while missing:
            # A question may be asked for at several scales; each round takes one of every question.
            taken = dict(reversed(missing))
            scales = torch.zeros(self._path.examples, dtype=torch.float64)
            scales[list(taken)] = torch.tensor(list(taken.values()), dtype=torch.float64)
            value, slope = array(self._path.at(scales, 1).stack).tolist()
            self._known.update(((row, scale), (value[row], slope[row])) for row, scale in taken.items())
            missing = [pair for pair in missing if pair not in self._known]
        return np.array([self._known[pair][order] for pair in asked], dtype=np.float64)


_KINDS = {Location.LEFT_ENDPOINT: "left", Location.INTERIOR: "interior", Location.RIGHT_ENDPOINT: "right"}


def concave_columns(path: AffinePath) -> tuple[Columns, Columns]:
    """The FP64 columns of every question, without their prefix, and the path at the nodes."""
    envelope = path.envelope(PATH_NODES - 1)
    nodes = array(envelope.nodes)
    phi, first, second, third, _ = map(array, envelope.derivatives.stack)
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


def searched_columns(path: UtilityPath) -> tuple[Columns, Columns]:
    """The FP64 columns of every question, without their prefix, and the path at the nodes."""
    nodes = np.linspace(0.0, 1.0, PATH_NODES)
    phi, first, second, third = map(array, path.derivatives(nodes.tolist(), 3).stack)
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
