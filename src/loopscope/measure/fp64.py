"""The FP64 path analysis of one update (level full; Appendices "FP64 Path Analysis" and "Curvature-Bound Evaluation").

The recurrent endpoints are kept; readout and derivatives are FP64. An affine readout of a reference solution gives a
concave path with derivative bounds that hold between samples: envelopes, partition sums, a bracketed optimum, the safe
scale, the progress boundary. Every other path (nonlinear readout, joint options) is searched adaptively, without such
bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from loopscope.measure.batches import Question
from loopscope.measure.columns import Columns, array, stacked
from loopscope.measure.layout import Layout
from loopscope.measure.paths import question_path, sequence_path
from loopscope.models.batch import Batch
from loopscope.models.protocol import LoopedModel
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
from loopscope.readout.affine import AffinePath, affine_path
from loopscope.readout.envelope import Envelope
from loopscope.readout.utility_path import UtilityPath
from loopscope.store.tables.grids import DIFFERENCE_SPACINGS, PATH_NODES

_STORED = 1 << 25
"""FP64 logits kept for one group of questions: z(0) and v, a quarter of a gigabyte each."""
_KINDS = {Location.LEFT_ENDPOINT: "left", Location.INTERIOR: "interior", Location.RIGHT_ENDPOINT: "right"}


Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Indices: TypeAlias = np.ndarray[Any, np.dtype[np.intp]]


@dataclass(frozen=True)
class Analysis:
    """Columns of `questions` and of `paths`, one row a question."""

    questions: Columns
    nodes: Columns


def analyse(model: LoopedModel, h_RSD: Tensor, h_plus_RSD: Tensor, layout: Layout, *, nodes: bool) -> Analysis:
    """The FP64 columns of every question of a batch."""
    parts = [_group(model, h_RSD[rows], h_plus_RSD[rows], part, nodes=nodes) for rows, part in _groups(model, layout)]
    return Analysis(stacked([part.questions for part in parts]), stacked([part.nodes for part in parts]))


def _groups(model: LoopedModel, layout: Layout) -> Iterator[tuple[slice, Layout]]:
    """Whole questions, so many at a time that their FP64 logits can be kept."""
    most = max(1, _STORED // model.vocabulary_size)
    group: list[Question] = []
    start = rows = tokens = 0
    for question in layout.questions:
        count = question.example.prediction_count
        if group and tokens + count > most:
            yield slice(start, start + rows), _sub_layout(layout, group, start, rows)
            start, rows, tokens, group = start + rows, 0, 0, []
        group.append(question)
        rows, tokens = rows + question.sequences, tokens + count
    yield slice(start, start + rows), _sub_layout(layout, group, start, rows)


def _sub_layout(layout: Layout, group: list[Question], start: int, rows: int) -> Layout:
    chosen = slice(start, start + rows)
    part = Batch(layout.batch.input_ids[chosen], layout.batch.attention_mask[chosen])
    return Layout.of(group, part, layout.targets_N.device)


def _group(model: LoopedModel, h_RSD: Tensor, h_plus_RSD: Tensor, layout: Layout, *, nodes: bool) -> Analysis:
    sequences = sequence_path(model, h_RSD, h_plus_RSD, layout, torch.float64)
    if isinstance(sequences, AffinePath):
        sequences = _stored(model, h_RSD, h_plus_RSD, layout)
    path = question_path(sequences, layout)
    gap = (h_RSD.double() + (h_plus_RSD.double() - h_RSD.double()) - h_plus_RSD.double()).abs().amax((1, 2))
    state_gap = np.zeros(len(layout.questions))
    np.maximum.at(state_gap, array(layout.question_R), array(gap))
    found = _concave(path) if isinstance(path, AffinePath) else _general(path)
    found.questions["fp64_state_gap"] = state_gap
    found.questions["fp64_quarter_gain"] = array(path.value(CONTRACTION))
    return found if nodes else Analysis(found.questions, {})


def _stored(model: LoopedModel, h_RSD: Tensor, h_plus_RSD: Tensor, layout: Layout) -> AffinePath:
    """The affine path with its logits kept: roots ask for them again and again."""
    assert model.head is not None
    row, place = layout.positions_N2.unbind(1)
    h_ND = h_RSD[row, place].double()
    weight_VD = model.head.weight_VD.double()
    z0_NV = h_ND @ weight_VD.T
    if model.head.bias_V is not None:
        z0_NV += model.head.bias_V.double()
    v_NV = (h_plus_RSD[row, place].double() - h_ND) @ weight_VD.T
    return affine_path(z0_NV, v_NV, layout.targets_N, examples=layout.sequence_N)


class _Functions:
    """φ and φ' of chosen questions at scales of their own, as `loopscope.path` asks for them.

    What was asked for last is kept: a search wants φ and φ' at the same places, one after the other.
    """

    def __init__(self, path: UtilityPath) -> None:
        self._path = path
        self._asked: tuple[bytes, bytes] | None = None
        self._found = np.empty((2, 0))

    def value(self, alpha: Floats, rows: Indices) -> Floats:
        """φ."""
        value: Floats = self._at(alpha, rows)[0]
        return value

    def derivative(self, alpha: Floats, rows: Indices) -> Floats:
        """φ'."""
        derivative: Floats = self._at(alpha, rows)[1]
        return derivative

    def _at(self, alpha: Floats, rows: Indices) -> Floats:
        asked = (alpha.tobytes(), rows.tobytes())
        if asked == self._asked:
            return self._found
        found = np.empty((2, alpha.size))
        # A question may be asked for at several scales; each turn takes one of every question.
        turns = _occurrence(rows)
        for turn in range(int(turns.max(initial=-1)) + 1):
            chosen = turns == turn
            scales = np.zeros(self._path.examples)
            scales[rows[chosen]] = alpha[chosen]
            found[:, chosen] = array(self._path.at(torch.from_numpy(scales), 1).stack)[:, rows[chosen]]
        self._asked, self._found = asked, found
        return found


def _occurrence(rows: Indices) -> Indices:
    """How often each entry has occurred before."""
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    first = np.searchsorted(ordered, ordered, side="left")
    result = np.empty(rows.size, dtype=np.intp)
    result[order] = np.arange(rows.size) - first
    return result


def _concave(path: AffinePath) -> Analysis:
    envelope = path.envelope(PATH_NODES - 1)
    nodes = array(envelope.nodes)
    phi, first, second, third, _ = (array(part) for part in envelope.derivatives.stack)
    slope, quadratic, gain = first[:, 0], 0.5 * second[:, 0], phi[:, -1]
    lipschitz = array(envelope.third)
    deviation = curvature_deviation(nodes, second, lipschitz)
    L_D = array(envelope.L_D)
    functions = _Functions(path)
    value = functions.value
    optimum = concave_optimum(functions.derivative, path.examples)
    rows = np.arange(path.examples)
    at_lower, at_upper = value(optimum.lower, rows), value(optimum.upper, rows)
    width = optimum.upper - optimum.lower
    highest = np.minimum(
        at_lower + np.maximum(optimum.slope_lower, 0.0) * width,
        at_upper + np.maximum(-optimum.slope_upper, 0.0) * width,
    )
    lowest = np.maximum(at_lower, at_upper)
    mu, nu = _bracket_curvature(envelope, optimum.lower, optimum.upper)
    predicted = predicted_scale(slope, quadratic)
    safe = safe_scale(slope, L_D)
    improving = slope > 0
    safe_gain = np.where(improving, value(np.where(improving, safe, 0.0), rows), np.nan)
    boundary = concave_boundary(value, slope)
    columns: Columns = {
        "slope": slope,
        "quadratic": quadratic,
        "gain": gain,
        "decomposition_residual": pathwise_decomposition(nodes, second, slope, gain).residual,
        "kl_residual": array(path.decomposition.residual),
        "M": array(envelope.M),
        "L_D": L_D,
        "mu": array(envelope.mu),
        "C_lower": deviation.lower,
        "C_upper": deviation.upper,
        "S": residual_envelope(nodes, first, quadratic, lipschitz, deviation.upper),
        **_sampled(second, third),
        "optimum_low": optimum.lower,
        "optimum_high": optimum.upper,
        "optimum_kind": [_KINDS[Location(code)] for code in optimum.location],
        "optimum_gain_low": lowest,
        "optimum_gain_high": np.maximum(highest, lowest),
        "optimum_slope_low": optimum.slope_lower,
        "optimum_slope_high": optimum.slope_upper,
        "optimum_mu": mu,
        "optimum_nu": nu,
        "predicted_scale": predicted,
        "predicted_gain": value(predicted, rows),
        "safe_scale": _or_null(safe),
        "safe_gain": _or_null(safe_gain),
        "boundary_low": _or_null(np.where(improving, boundary.lower, np.nan)),
        "boundary_high": _or_null(np.where(improving, boundary.upper, np.nan)),
        "evaluations": optimum.evaluations,
    }
    return Analysis(_prefixed(columns), _nodes(nodes, phi, first, second, third))


def _bracket_curvature(envelope: Envelope, lower: Floats, upper: Floats) -> tuple[Floats, Floats]:
    """μ and ν with μ ≤ −φ'' ≤ ν on each bracket: the extremes of the cells that it touches."""
    below, above = array(envelope.curvature_lower), array(envelope.curvature_upper)
    cells = below.shape[1]
    index = np.arange(cells)
    first = np.minimum((lower * cells).astype(int), cells - 1)[:, None]
    last = np.minimum((upper * cells).astype(int), cells - 1)[:, None]
    touched = (index >= first) & (index <= last)
    return np.where(touched, below, np.inf).min(1), np.where(touched, above, -np.inf).max(1)


def _general(path: UtilityPath) -> Analysis:
    nodes = np.linspace(0.0, 1.0, PATH_NODES)
    phi, first, second, third = (array(part) for part in path.derivatives(nodes.tolist(), 3).stack)
    slope, quadratic, gain = first[:, 0], 0.5 * second[:, 0], phi[:, -1]
    functions = _Functions(path)
    value, derivative = functions.value, functions.derivative
    predicted = predicted_scale(slope, quadratic)
    fine = search_optimum(value, derivative, predicted, locations=PATH_NODES)
    coarse = search_optimum(value, derivative, predicted, locations=(PATH_NODES + 1) // 2)
    kinds = ["left" if alpha == 0.0 else "right" if alpha == 1.0 else "interior" for alpha in fine.alpha]
    absolute, relative = _third_gaps(path)
    half = slice(None, None, 2)
    columns: Columns = {
        "slope": slope,
        "quadratic": quadratic,
        "gain": gain,
        "decomposition_residual": pathwise_decomposition(nodes, second, slope, gain).residual,
        **_sampled(second, third),
        "optimum_low": fine.alpha,
        "optimum_high": fine.alpha,
        "optimum_kind": kinds,
        "optimum_gain_low": fine.value,
        "optimum_gain_high": fine.value,
        "predicted_scale": predicted,
        "predicted_gain": fine.predicted_value,
        "evaluations": np.full(path.examples, fine.locations) + fine.roots + 1,
        "third_absolute_gap": absolute,
        "third_relative_gap": relative,
        "refined_gain_change": np.abs(fine.value - coarse.value),
        "refined_scale_change": np.abs(fine.alpha - coarse.alpha),
        "refined_curvature_change": np.abs((-second).max(1) - (-second[:, half]).max(1)),
        "refined_third_change": np.abs(np.abs(third).max(1) - np.abs(third[:, half]).max(1)),
    }
    return Analysis(_prefixed(columns), _nodes(nodes, phi, first, second, third))


def _third_gaps(path: UtilityPath) -> tuple[Floats, Floats]:
    """φ'''(1/2) against central differences of φ'' around it, at the paper's three spacings: [B, 3] each."""
    middle = array(path.derivatives(0.5, 3).stack[3])
    gaps = []
    for spacing in DIFFERENCE_SPACINGS:
        sides = array(path.derivatives([0.5 - spacing, 0.5 + spacing], 2).stack[2])
        gaps.append(np.abs(middle - (sides[:, 1] - sides[:, 0]) / (2.0 * spacing)))
    absolute = np.stack(gaps, axis=1)
    scale = np.abs(middle)[:, None]
    return absolute, np.divide(absolute, scale, out=np.zeros_like(absolute), where=scale > 0)


def _sampled(second: Floats, third: Floats) -> Columns:
    return {
        "sampled_curvature": (-second).max(1),
        "sampled_convexity": second.max(1),
        "sampled_third": np.abs(third).max(1),
    }


def _nodes(nodes: Floats, phi: Floats, first: Floats, second: Floats, third: Floats) -> Columns:
    alpha = np.broadcast_to(nodes, phi.shape)
    return {"alpha": alpha, "gain": phi, "slope": first, "curvature": second, "third": third}


def _prefixed(columns: Columns) -> Columns:
    return {f"fp64_{name}": values for name, values in columns.items()}


def _or_null(values: Floats) -> Any:
    return np.ma.masked_invalid(values)
