"""The FP64 path analysis of one update (level full; Appendices "FP64 Path Analysis", "Curvature-Bound Evaluation").

The recurrent endpoints are kept; readout and derivatives are FP64.

An affine readout of a reference solution gives a concave path (`concave_columns`): bounds of its derivatives that hold
between samples, and what follows from them: partition sums, signed residual, bracketed optimum, safe scale, progress
boundary. Every other path is searched adaptively, without such bounds (`searched_columns`; Appendix "Refined numerical
optima"): 257 locations with local refinement, third derivatives with their central differences, and what changes from
129 locations to 257.

Under the paper's protocol bounds are those of its envelope, optima those of its brackets, extremes those at its
locations.

Shapes: R sequences, S positions, D hidden width, B questions, K nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from loopscope.measuring.readouts import LOGITS, Readout
from loopscope.measuring.update import Columns, Update, array, pairs, stacked
from loopscope.path import (
    CONTRACTION,
    DIFFERENCE_SPACINGS,
    PATH_NODES,
    Location,
    concave_boundary,
    concave_optimum,
    curvature_deviation,
    paper_envelope,
    pathwise_decomposition,
    predicted_scale,
    residual_envelope,
    safe_scale,
    search_optimum,
)
from loopscope.path.bounds import PaperEnvelope
from loopscope.readout.affine.envelope import Envelope
from loopscope.readout.affine.path import AffinePath
from loopscope.readout.path import UtilityPath

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Indices: TypeAlias = np.ndarray[Any, np.dtype[np.intp]]

_KEPT = {"cuda": 1 << 28}
"""FP64 logits of each end that a device keeps at a time: 2 GiB, so that many questions share the rounds of a search."""


def analyse(readout: Readout, update: Update, paper_bracket: float | None = None) -> tuple[Columns, Columns]:
    """The FP64 columns of `questions` and of `paths` of a batch, as many at a time as their FP64 logits can be kept.

    `paper_bracket` asks for the paper's envelope and extremes, and for optima in brackets of this width.
    """
    kept, dtype = _KEPT.get(update.before_RSD.device.type, LOGITS), torch.float32 if paper_bracket else torch.float64
    questions, paths = list[Columns](), list[Columns]()
    for group in update.groups(max(1, kept // readout.model.vocabulary_size)):
        found, nodes = path_columns(readout.fp64_path(group), paper_bracket)
        found["state_gap"] = state_gap(group, dtype)
        questions.append({f"fp64_{name}": values for name, values in found.items()})
        paths.append({name: values for name, values in nodes._asdict().items() if name != "scales"})
    return stacked(questions), stacked(paths)


def path_columns(path: UtilityPath, bracket: float | None = None) -> tuple[Columns, Nodes]:
    """The columns of every question that follow from its path, without their prefix, and the nodes."""
    if isinstance(path, AffinePath):
        envelope = path.envelope(PATH_NODES - 1)
        nodes = Nodes(*map(array, (envelope.nodes, *envelope.derivatives.stack[:4])))
        found = concave_columns(path, nodes, envelope, bracket)
    else:
        scales = np.linspace(0.0, 1.0, PATH_NODES)
        nodes = Nodes(scales, *map(array, path.derivatives(scales.tolist(), 3).stack))
        found = searched_columns(path, nodes, bracket)
    slope, quadratic, gain = nodes.coefficients
    found |= {
        "slope": slope,
        "quadratic": quadratic,
        "gain": gain,
        "decomposition_residual": pathwise_decomposition(nodes.scales, nodes.curvature, slope, gain).residual,
        "quarter_gain": nodes.gain[:, int(CONTRACTION * (PATH_NODES - 1))],
    }
    return found, nodes


class Nodes(NamedTuple):
    """φ and three derivatives at 257 scales, [B, 257] each."""

    scales: Floats
    gain: Floats
    slope: Floats
    curvature: Floats
    third: Floats

    @property
    def coefficients(self) -> tuple[Floats, Floats, Floats]:
        """A, Q and ΔU."""
        return self.slope[:, 0], 0.5 * self.curvature[:, 0], self.gain[:, -1]


def state_gap(update: Update, dtype: torch.dtype) -> Floats:
    """The largest entry of |H + D − H⁺| at a question's valid positions, in an arithmetic."""
    layout, h, h_plus = update.layout, update.before_RSD.to(dtype), update.after_RSD.to(dtype)
    gap_RS = (h + (h_plus - h) - h_plus).abs().amax(2) * layout.batch.attention_mask
    found = np.zeros(len(layout.questions))
    np.maximum.at(found, array(layout.question_R), array(gap_RS.amax(1)))
    return found


class PathFunctions:
    """φ and φ' of chosen questions, or a higher derivative of φ and its slope; what is known is not evaluated again.

    A search asks for φ and φ' at the same places one after the other, and at many nodes of the partition. `order` is
    that of the slope.
    """

    def __init__(self, path: UtilityPath, nodes_K: Floats, value_BK: Floats, slope_BK: Floats, order: int = 1) -> None:
        self._path, self._order = path, order
        self._known: dict[tuple[int, float], tuple[float, float]] = {}
        for row, known in enumerate(np.stack([value_BK, slope_BK], 2).tolist()):
            self._known |= {(row, scale): tuple(pair) for scale, pair in zip(nodes_K.tolist(), known, strict=True)}

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
            value, slope = array(self._path.at(scales, self._order).stack[-2:]).tolist()
            self._known.update(((row, scale), (value[row], slope[row])) for row, scale in taken.items())
            missing = [pair for pair in missing if pair not in self._known]
        return np.array([self._known[pair][order] for pair in asked], dtype=np.float64)


_KINDS = {Location.LEFT_ENDPOINT: "left", Location.INTERIOR: "interior", Location.RIGHT_ENDPOINT: "right"}


def concave_columns(path: AffinePath, nodes: Nodes, envelope: Envelope, bracket: float | None) -> Columns:
    """What bounds on cells give, of a reference solution under an affine readout; with a bracket the paper's bounds."""
    slope, quadratic, _ = nodes.coefficients
    if bracket is None:
        bounds = (envelope.curvature_upper, envelope.curvature_lower, envelope.third)
        cells = PaperEnvelope(*map(array, bounds))
    else:
        cells = paper_envelope(nodes.scales, nodes.curvature, nodes.third, array(envelope.range_moments))
    functions, rows = PathFunctions(path, nodes.scales, nodes.gain, nodes.slope), np.arange(path.examples)
    deviation = curvature_deviation(nodes.scales, nodes.curvature, cells.third)
    bound, improving = cells.curvature_upper.max(1), slope > 0
    safe = safe_scale(np.where(improving, slope, 1.0), bound)
    safe_gain = functions.value(np.where(improving, safe, 0.0), rows)
    predicted, boundary = predicted_scale(slope, quadratic), concave_boundary(functions.value, slope)
    return {
        "sampled_curvature": (-nodes.curvature).max(1),
        "sampled_convexity": nodes.curvature.max(1),
        "sampled_third": np.abs(nodes.third).max(1),
        "M": cells.third.max(1),
        "L_D": bound,
        "mu": cells.curvature_lower.min(1),
        "C_upper": deviation.upper,
        "S": residual_envelope(nodes.scales, nodes.slope, quadratic, cells.third, deviation.upper),
        **_optimum(functions, cells, path.examples, bracket),
        "safe_scale": np.ma.masked_array(safe, mask=~improving),
        "safe_gain": np.ma.masked_array(safe_gain, mask=~improving),
        "predicted_scale": predicted,
        "predicted_gain": functions.value(predicted, rows),
        "boundary": pairs(boundary.lower, boundary.upper, improving),
    }


def _optimum(functions: PathFunctions, cells: PaperEnvelope, examples: int, bracket: float | None) -> Columns:
    """α* in its bracket, and φ(α*) between what concavity allows at the bracket's ends; a wide one by bisection."""
    # The path of an affine readout is concave by its form.
    how: Any = {} if bracket is None else {"tolerance": bracket, "bisect": True}
    optimum = concave_optimum(functions.derivative, examples, **how)
    rows = np.arange(examples)
    at_lower, at_upper = functions.value(optimum.lower, rows), functions.value(optimum.upper, rows)
    width = optimum.upper - optimum.lower
    highest = np.minimum(
        at_lower + np.maximum(optimum.slope_lower, 0.0) * width,
        at_upper + np.maximum(-optimum.slope_upper, 0.0) * width,
    )
    lowest = np.maximum(at_lower, at_upper)
    mu, nu = _bracket_curvature(cells, optimum.lower, optimum.upper)
    return {
        "optimum_low": optimum.lower,
        "optimum_high": optimum.upper,
        "optimum_kind": [_KINDS[Location(code)] for code in optimum.location],
        "optimum_gain_low": lowest,
        "optimum_gain_high": np.maximum(highest, lowest),
        "optimum_slope": pairs(optimum.slope_lower, optimum.slope_upper),
        "optimum_curvature": pairs(mu, nu),
    }


def _bracket_curvature(envelope: PaperEnvelope, lower: Floats, upper: Floats) -> tuple[Floats, Floats]:
    """μ and ν with μ ≤ −φ'' ≤ ν on each bracket: the extremes of the cells that it touches."""
    below, above = envelope.curvature_lower, envelope.curvature_upper
    cells = below.shape[1]
    index = np.arange(cells)
    first = np.minimum((lower * cells).astype(int), cells - 1)[:, None]
    last = np.minimum((upper * cells).astype(int), cells - 1)[:, None]
    touched = (index >= first) & (index <= last)
    return np.where(touched, below, np.inf).min(1), np.where(touched, above, -np.inf).max(1)


def searched_columns(path: UtilityPath, nodes: Nodes, bracket: float | None) -> Columns:
    """What an adaptive search without bounds gives, of any other path.

    Extremes are those at the nodes; with a bracket, as in the paper, those at the searched locations.
    """
    slope, quadratic, _ = nodes.coefficients
    functions, predicted = PathFunctions(path, nodes.scales, nodes.gain, nodes.slope), predicted_scale(slope, quadratic)
    fine, coarse = (
        search_optimum(functions.value, functions.derivative, predicted, locations=locations)
        for locations in (PATH_NODES, (PATH_NODES + 1) // 2)
    )
    if bracket is None:
        sampled: list[tuple[Floats, ...]] = [(nodes.curvature[:, ::step], nodes.third[:, ::step]) for step in (1, 2)]
        curved, coarse_curved = ((-each[0]).max(1) for each in sampled)
    else:
        known = PathFunctions(path, nodes.scales, nodes.curvature, nodes.third, order=3)
        both = known.value, known.derivative
        sampled = [tuple(_by_row(each, search.searched) for each in both) for search in (fine, coarse)]
        curved, coarse_curved = (np.maximum(-each[0], 0.0).max(1) for each in sampled)
    steepest, coarse_steepest = (np.abs(each[1]).max(1) for each in sampled)
    pairs_of = ((fine.value, coarse.value), (fine.alpha, coarse.alpha), (curved, coarse_curved))
    changes = [np.abs(one - other) for one, other in (*pairs_of, (steepest, coarse_steepest))]
    return {
        "sampled_curvature": (-sampled[0][0]).max(1),
        "sampled_convexity": sampled[0][0].max(1),
        "sampled_third": steepest,
        "optimum_low": fine.alpha,
        "optimum_high": fine.alpha,
        "optimum_kind": ["left" if at == 0.0 else "right" if at == 1.0 else "interior" for at in fine.alpha],
        "optimum_gain_low": fine.value,
        "optimum_gain_high": fine.value,
        "predicted_scale": predicted,
        "predicted_gain": fine.predicted_value,
        **_third_gaps(path, nodes.third[:, PATH_NODES // 2]),
        "refined_change": np.stack(changes, 1),
    }


def _by_row(function: Callable[[Floats, Indices], Floats], alpha_BK: Floats) -> Floats:
    """A function of every question at scales of its own."""
    rows = np.repeat(np.arange(len(alpha_BK)), alpha_BK.shape[1])
    return function(alpha_BK.ravel(), rows).reshape(alpha_BK.shape)


def _third_gaps(path: UtilityPath, middle_B: Floats) -> Columns:
    """φ'''(1/2) against central differences of φ'' around it, at the paper's three spacings: [B, 3] each."""
    sides = [side for spacing in DIFFERENCE_SPACINGS for side in (0.5 - spacing, 0.5 + spacing)]
    second = array(path.derivatives(sides, 2).stack[2])
    steps = 2.0 * np.array(DIFFERENCE_SPACINGS)
    absolute = np.abs(middle_B[:, None] - (second[:, 1::2] - second[:, ::2]) / steps)
    scale = np.abs(middle_B)[:, None]
    relative = np.divide(absolute, scale, out=np.zeros_like(absolute), where=scale > 0)
    return {"third_absolute_gap": absolute, "third_relative_gap": relative}
