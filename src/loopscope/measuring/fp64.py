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
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from loopscope.measuring.host_copies import Columns, array, pairs, stacked
from loopscope.measuring.readouts import Readout
from loopscope.measuring.sequence_groups import LOGITS
from loopscope.measuring.update import Update
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
from loopscope.readout.affine.envelope import Envelope
from loopscope.readout.affine.path import AffinePath
from loopscope.readout.path import UtilityPath

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Indices: TypeAlias = np.ndarray[Any, np.dtype[np.intp]]

_KEPT = {"cuda": 1 << 28}
"""FP64 logits of each end that a device keeps at a time: 2 GiB, so that many questions share the rounds of a search."""


@dataclass(frozen=True)
class Analysis:
    """Columns of `questions` and of `paths`, one row per question."""

    questions: Columns
    nodes: Columns


def analyse(readout: Readout, update: Update, paper_bracket: float | None = None) -> Analysis:
    """The FP64 columns of every question of a batch, as many at a time as their FP64 logits can be kept.

    `paper_bracket` asks for the paper's envelope and extremes, and for optima in brackets of this width.
    """
    kept = _KEPT.get(update.before_RSD.device.type, LOGITS)
    most = max(1, kept // readout.model.vocabulary_size)
    found = [_analyse_group(readout, group, paper_bracket) for group in update.groups(most)]
    return Analysis(*(stacked([getattr(group, name) for group in found]) for name in ("questions", "nodes")))


def _analyse_group(readout: Readout, update: Update, paper_bracket: float | None) -> Analysis:
    path = readout.fp64_path(update)
    known = ConcavePath(path) if isinstance(path, AffinePath) else SearchedPath(path)
    found, nodes = known.columns(paper_bracket), known.nodes()
    found["state_gap"] = state_gap(update, torch.float64 if paper_bracket is None else torch.float32)
    found["quarter_gain"] = nodes["gain"][:, int(CONTRACTION * (PATH_NODES - 1))]
    return Analysis({f"fp64_{name}": values for name, values in found.items()}, nodes)


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
            value, slope = array(self._path.at(scales, self._order).stack[-2:]).tolist()
            self._known.update(((row, scale), (value[row], slope[row])) for row, scale in taken.items())
            missing = [pair for pair in missing if pair not in self._known]
        return np.array([self._known[pair][order] for pair in asked], dtype=np.float64)


_KINDS = {Location.LEFT_ENDPOINT: "left", Location.INTERIOR: "interior", Location.RIGHT_ENDPOINT: "right"}


class ConcavePath:
    """The path of a reference solution under an affine readout, with the envelope of its derivatives."""

    def __init__(self, path: AffinePath) -> None:
        self._path, self._envelope = path, path.envelope(PATH_NODES - 1)
        self._nodes = array(self._envelope.nodes)
        self._phi, self._first, self._second, self._third, _ = map(array, self._envelope.derivatives.stack)
        self._functions = PathFunctions(path, self._nodes, self._phi, self._first)

    def nodes(self) -> Columns:
        """The columns of `paths`."""
        return {"gain": self._phi, "slope": self._first, "curvature": self._second, "third": self._third}

    def columns(self, bracket: float | None = None) -> Columns:
        """The FP64 columns of every question, without their prefix; with a bracket by the paper's envelope."""
        slope, quadratic, gain = self._first[:, 0], 0.5 * self._second[:, 0], self._phi[:, -1]
        predicted = predicted_scale(slope, quadratic)
        rows = np.arange(self._path.examples)
        boundary = concave_boundary(self._functions.value, slope)
        return {
            "slope": slope,
            "quadratic": quadratic,
            "gain": gain,
            "decomposition_residual": pathwise_decomposition(self._nodes, self._second, slope, gain).residual,
            "sampled_curvature": (-self._second).max(1),
            "sampled_convexity": self._second.max(1),
            "sampled_third": np.abs(self._third).max(1),
            **self._bounded(self._cells(as_in_paper=bracket is not None), bracket),
            "predicted_scale": predicted,
            "predicted_gain": self._functions.value(predicted, rows),
            "boundary": pairs(boundary.lower, boundary.upper, slope > 0),
        }

    def _cells(self, *, as_in_paper: bool) -> CellEnvelope:
        if not as_in_paper:
            return CellEnvelope.of(self._envelope)
        moments = array(self._envelope.range_moments)
        return CellEnvelope(*paper_envelope(self._nodes, self._second, self._third, moments))

    def _bounded(self, cells: CellEnvelope, bracket: float | None) -> Columns:
        """What follows from bounds on cells: constants of [0, 1], partition sums, optimum, safe scale."""
        slope, quadratic = self._first[:, 0], 0.5 * self._second[:, 0]
        deviation = curvature_deviation(self._nodes, self._second, cells.third)
        bound = cells.curvature_upper.max(1)
        improving = slope > 0
        scale = safe_scale(np.where(improving, slope, 1.0), bound)
        gain = self._functions.value(np.where(improving, scale, 0.0), np.arange(slope.size))
        return {
            "M": cells.third.max(1),
            "L_D": bound,
            "mu": cells.curvature_lower.min(1),
            "C_upper": deviation.upper,
            "S": residual_envelope(self._nodes, self._first, quadratic, cells.third, deviation.upper),
            **_optimum(self._functions, cells, self._path.examples, bracket),
            **_where(improving, {"safe_scale": scale, "safe_gain": gain}),
        }


class CellEnvelope(NamedTuple):
    """Bounds on each cell, [B, cells]: of −φ'' from above and below, of |φ'''|."""

    curvature_upper: Floats
    curvature_lower: Floats
    third: Floats

    @classmethod
    def of(cls, envelope: Envelope) -> CellEnvelope:
        """On the host."""
        return cls(*map(array, (envelope.curvature_upper, envelope.curvature_lower, envelope.third)))


def _where(shown: np.ndarray[Any, np.dtype[np.bool_]], columns: dict[str, Floats]) -> Columns:
    """Null elsewhere."""
    return {name: np.ma.masked_array(values, mask=~shown) for name, values in columns.items()}


def _optimum(functions: PathFunctions, cells: CellEnvelope, examples: int, bracket: float | None) -> Columns:
    """α* in its bracket, and φ(α*) between what concavity allows at the bracket's ends; a wide one by bisection."""
    # The path of an affine readout is concave by its form.
    if bracket is None:
        optimum = concave_optimum(functions.derivative, examples)
    else:
        optimum = concave_optimum(functions.derivative, examples, tolerance=bracket, bisect=True)
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


def _bracket_curvature(envelope: CellEnvelope, lower: Floats, upper: Floats) -> tuple[Floats, Floats]:
    """μ and ν with μ ≤ −φ'' ≤ ν on each bracket: the extremes of the cells that it touches."""
    below, above = envelope.curvature_lower, envelope.curvature_upper
    cells = below.shape[1]
    index = np.arange(cells)
    first = np.minimum((lower * cells).astype(int), cells - 1)[:, None]
    last = np.minimum((upper * cells).astype(int), cells - 1)[:, None]
    touched = (index >= first) & (index <= last)
    return np.where(touched, below, np.inf).min(1), np.where(touched, above, -np.inf).max(1)


class Extremes(NamedTuple):
    """The largest sampled −φ'', φ'' and |φ'''|, and how −φ'' and |φ'''| change from 129 locations to 257, [B] each."""

    curvature: Floats
    convexity: Floats
    third: Floats
    changes: tuple[Floats, Floats]


class SearchedPath:
    """Any other path: an adaptive search without bounds."""

    def __init__(self, path: UtilityPath) -> None:
        self._path, self._nodes = path, np.linspace(0.0, 1.0, PATH_NODES)
        self._phi, self._first, self._second, self._third = map(array, path.derivatives(self._nodes.tolist(), 3).stack)
        slope, quadratic = self._first[:, 0], 0.5 * self._second[:, 0]
        functions = PathFunctions(path, self._nodes, self._phi, self._first)
        self._predicted = predicted_scale(slope, quadratic)
        self._fine, self._coarse = (
            search_optimum(functions.value, functions.derivative, self._predicted, locations=locations)
            for locations in (PATH_NODES, (PATH_NODES + 1) // 2)
        )

    def nodes(self) -> Columns:
        """The columns of `paths`."""
        return {"gain": self._phi, "slope": self._first, "curvature": self._second, "third": self._third}

    def columns(self, bracket: float | None = None) -> Columns:
        """The FP64 columns of every question, without their prefix; with a bracket by the paper's extremes."""
        second, third, fine, coarse = self._second, self._third, self._fine, self._coarse
        slope, quadratic, gain = self._first[:, 0], 0.5 * second[:, 0], self._phi[:, -1]
        extremes = self._even_extremes() if bracket is None else self._searched_extremes()
        changes = (np.abs(fine.value - coarse.value), np.abs(fine.alpha - coarse.alpha), *extremes.changes)
        kinds = ["left" if alpha == 0.0 else "right" if alpha == 1.0 else "interior" for alpha in fine.alpha]
        return {
            "slope": slope,
            "quadratic": quadratic,
            "gain": gain,
            "decomposition_residual": pathwise_decomposition(self._nodes, second, slope, gain).residual,
            "sampled_curvature": extremes.curvature,
            "sampled_convexity": extremes.convexity,
            "sampled_third": extremes.third,
            "optimum_low": fine.alpha,
            "optimum_high": fine.alpha,
            "optimum_kind": kinds,
            "optimum_gain_low": fine.value,
            "optimum_gain_high": fine.value,
            "predicted_scale": self._predicted,
            "predicted_gain": fine.predicted_value,
            **_third_gaps(self._path, third[:, PATH_NODES // 2]),
            "refined_change": np.stack(changes, 1),
        }

    def _even_extremes(self) -> Extremes:
        second, third, half = self._second, np.abs(self._third), slice(None, None, 2)
        changes = (
            np.abs((-second).max(1) - (-second[:, half]).max(1)),
            np.abs(third.max(1) - third[:, half].max(1)),
        )
        return Extremes((-second).max(1), second.max(1), third.max(1), changes)

    def _searched_extremes(self) -> Extremes:
        """At the searched locations instead of the nodes, as in the paper."""
        known = PathFunctions(self._path, self._nodes, self._second, self._third, order=3)
        (second, third), (coarse_second, coarse_third) = (
            [_by_row(function, search.searched) for function in (known.value, known.derivative)]
            for search in (self._fine, self._coarse)
        )
        curved, coarse_curved = (np.maximum(-values, 0.0).max(1) for values in (second, coarse_second))
        steepest, coarse_steepest = (np.abs(values).max(1) for values in (third, coarse_third))
        changes = (np.abs(curved - coarse_curved), np.abs(steepest - coarse_steepest))
        return Extremes((-second).max(1), second.max(1), steepest, changes)


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
