"""Which function makes which stored columns of an update and of a depth.

A producer declares a table, the columns that it returns and when it applies; the pass calls those that do, in this
order. Adding a column takes its declaration in `store.schema` and a producer here. `trace` has its own in
`tokens_and_trace`, `examples` in `batching`: they follow from states and texts, not from an update.

Nothing here waits for the device, except what level full and certificates search on the host: columns are tensors, or
`HostColumn`s that follow from the columns before them.

Shapes: N reference tokens, B questions, K scales.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from loopscope.measuring.batching import Layout, Question
from loopscope.measuring.certificates import certificate_columns
from loopscope.measuring.checks import endpoint_replay, exact_kl, scalar_check
from loopscope.measuring.config import MeasureConfig
from loopscope.measuring.fp64 import Analysis, analyse
from loopscope.measuring.host_copies import Columns, HostColumn
from loopscope.measuring.readouts import GeneralReadout, Reading, Readout, UpdatePaths
from loopscope.measuring.tokens_and_trace import token_identity
from loopscope.measuring.update import Update, predicted_scale, state_change
from loopscope.path import CONTRACTION, CURVATURE_SCALES, GRID, classify, scales_up_to
from loopscope.store.schema import Level

Tables = dict[str, Columns]


@dataclass
class MeasuredUpdate:
    """An update, its paths, and what several producers need of them, computed once."""

    update: Update
    readout: Readout
    settings: MeasureConfig
    known_paths: UpdatePaths | None

    @property
    def layout(self) -> Layout:
        """Where the reference tokens are."""
        return self.update.layout

    @property
    def paths(self) -> UpdatePaths:
        """φ of tokens and questions; gone when what does not need them runs."""
        assert self.known_paths is not None, "declare the producer with `paths=True`"
        return self.known_paths

    @property
    def quick(self) -> bool:
        """Whether nothing but both ends and the derivatives at 0 are asked for."""
        return self.settings.level is Level.QUICK

    @cached_property
    def derivatives(self) -> Tensor:
        """φ and two derivatives at the scales of the curvature path, or at 0, [3, B, K]."""
        return self.paths.questions.at_scales([0.0] if self.quick else list(CURVATURE_SCALES), 2)

    @cached_property
    def gains(self) -> Tensor:
        """φ on the grid, or at 1, [B, K]."""
        # Derivatives first: through a nonlinear readout they are what costs, and they bring the values along.
        _ = self.derivatives
        return self.paths.questions.at_scales([1.0] if self.quick else list(GRID), 0)[0]

    @cached_property
    def slope(self) -> Tensor:
        """A, [B]."""
        return self.derivatives[1, :, 0]

    @cached_property
    def quadratic(self) -> Tensor:
        """Q, [B]."""
        return 0.5 * self.derivatives[2, :, 0]

    @property
    def gain(self) -> Tensor:
        """ΔU, [B]."""
        return self.gains[:, -1]

    @cached_property
    def scale(self) -> Tensor:
        """α̂, [B]."""
        return predicted_scale(self.slope, self.quadratic)

    @cached_property
    def utility_before(self) -> Tensor:
        """U(H), [B]."""
        return self.paths.before.utility_B

    @property
    def utility_after(self) -> Tensor:
        """U(H⁺), [B]."""
        return self.utility_before + self.gain

    @cached_property
    def analysis(self) -> Analysis:
        """The FP64 path analysis."""
        return analyse(self.readout, self.update, self.settings.paper_bracket)


@dataclass(frozen=True)
class MeasuredDepth:
    """What the states after some loops say."""

    depth: int
    reading: Reading
    layout: Layout


Subject = TypeVar("Subject")


@dataclass(frozen=True)
class Producer(Generic[Subject]):
    """A function that makes some columns of one table.

    Attributes:
        table: the table.
        columns: their names.
        applies: whether the columns are asked for and exist; elsewhere they are null.
        make: the function.
        uses_paths: whether it reads `MeasuredUpdate.paths`, which are given back before the others run.
    """

    table: str
    columns: tuple[str, ...]
    applies: Callable[[Subject], bool]
    make: Callable[[Subject], Columns]
    uses_paths: bool = True


UPDATE_PRODUCERS: list[Producer[MeasuredUpdate]] = []
DEPTH_PRODUCERS: list[Producer[MeasuredDepth]] = []

Of = Callable[[MeasuredUpdate], Columns]


def of_update(
    table: str, *columns: str, when: Callable[[MeasuredUpdate], bool] = lambda _: True, paths: bool = True
) -> Callable[[Of], Of]:
    """Declare the producer of some columns of an update."""

    def declare(make: Of) -> Of:
        UPDATE_PRODUCERS.append(Producer(table, columns, when, make, paths))
        return make

    return declare


def of_depth(*columns: str, when: Callable[[MeasuredDepth], bool] = lambda _: True) -> Callable[[Any], Any]:
    """Declare the producer of some columns of `depths`."""

    def declare(make: Callable[[MeasuredDepth], Columns]) -> Callable[[MeasuredDepth], Columns]:
        DEPTH_PRODUCERS.append(Producer("depths", columns, when, make))
        return make

    return declare


def tables_of_update(measured: MeasuredUpdate) -> Tables:
    """Every table of an update but for its transition."""
    tables: Tables = {}
    needed = sorted((one for one in UPDATE_PRODUCERS if one.applies(measured)), key=lambda one: not one.uses_paths)
    for producer in needed:
        if not producer.uses_paths:
            measured.known_paths = None
        rows = tables.setdefault(producer.table, {})
        rows.update(producer.make(measured))
    rows_B = np.asarray([question.row for question in measured.layout.questions])
    for columns in tables.values():
        columns.setdefault("row", rows_B)
    return tables


def columns_of_depth(measured: MeasuredDepth) -> Columns:
    """The rows of `depths` for one depth."""
    found: Columns = {"row": np.asarray([question.row for question in measured.layout.questions])}
    for producer in DEPTH_PRODUCERS:
        if producer.applies(measured):
            found |= producer.make(measured)
    return found


def _from_grid_on(measured: MeasuredUpdate) -> bool:
    return not measured.quick


def _full(measured: MeasuredUpdate) -> bool:
    return measured.settings.level is Level.FULL


def _ids(questions: tuple[Question, ...]) -> list[str]:
    return [question.example.id for question in questions]


@of_update("questions", "example_id", "source_row")
def _identity(measured: MeasuredUpdate) -> Columns:
    questions = measured.layout.questions
    return {
        "example_id": _ids(questions),
        "source_row": np.asarray([question.example.source_row for question in questions]),
    }


@of_update(
    "questions",
    *("utility_before", "utility_after", "gain", "slope", "quadratic", "outcome", "quadratic_scale"),
)
def _coefficients(measured: MeasuredUpdate) -> Columns:
    return {
        "utility_before": measured.utility_before,
        "utility_after": measured.utility_after,
        "gain": measured.gain,
        "slope": measured.slope,
        "quadratic": measured.quadratic,
        "outcome": HostColumn(_outcome),
        "quadratic_scale": measured.scale,
    }


def _outcome(columns: Columns) -> np.ndarray[Any, Any]:
    return np.atleast_1d(classify(columns["slope"], columns["gain"]))


@of_update("questions", "quarter_gain", "quadratic_gain", when=lambda m: m.quick and m.settings.short_steps)
def _short_steps(measured: MeasuredUpdate) -> Columns:
    """What a monitor needs at level quick: the gains of a quarter step and of the quadratic step."""
    scale, readout = measured.scale, measured.readout
    if not isinstance(readout, GeneralReadout):
        path = measured.paths.questions
        quarter, quadratic = path.at_scales([CONTRACTION], 0)[0, :, 0], path.at_own(scale, 0)[0]
    else:
        found = readout.read_steps(measured.update, (torch.full_like(scale, CONTRACTION), scale))
        quarter, quadratic = (reading.utility_B - measured.utility_before for reading in found)
        quadratic = torch.where(scale == 0.0, 0.0, quadratic)
    return {"quarter_gain": quarter, "quadratic_gain": quadratic}


@of_update("questions", "grid_gain", "curvature_path", "quadratic_gain", when=_from_grid_on)
def _grid(measured: MeasuredUpdate) -> Columns:
    return {
        "grid_gain": measured.gains,
        "curvature_path": measured.derivatives[2],
        "quadratic_gain": measured.paths.questions.at_own(measured.scale, 0)[0],
    }


@of_update("questions", "output_kl", "entropy_change", when=_from_grid_on)
def _outputs(measured: MeasuredUpdate) -> Columns:
    outputs, layout = measured.paths.outputs, measured.layout
    assert outputs is not None, "read at every level but quick"
    return {
        "output_kl": layout.question_mean(outputs.divergence_R),
        "entropy_change": layout.question_mean(outputs.entropy_R),
    }


@of_update(
    "questions",
    *("kl_correction", "kl_slope", "kl_gain"),
    when=lambda m: not m.quick and m.readout.is_affine and not m.layout.is_options,
)
def _exact_kl(measured: MeasuredUpdate) -> Columns:
    """The correction of a reference solution; under the paper's protocol with A and ΔU, all from FP32 logits."""
    outputs = measured.paths.outputs
    assert outputs is not None, "read at every level but quick"
    if measured.settings.paper_bracket is None:
        return {"kl_correction": outputs.divergence_R}
    slope, gain, correction = exact_kl(measured.readout, measured.update).unbind(1)
    return {"kl_correction": correction, "kl_slope": slope, "kl_gain": gain}


@of_update("questions", "update_norm", "relative_change", "cosine_change", when=_from_grid_on)
def _states(measured: MeasuredUpdate) -> Columns:
    return state_change(measured.update)._asdict()


@of_update("questions", "bf16_quarter_gain", "bf16_quadratic_gain", when=_from_grid_on)
def _interventions(measured: MeasuredUpdate) -> Columns:
    quarter = torch.full_like(measured.scale, CONTRACTION)
    found = measured.readout.read_rounded(measured.update, (quarter, measured.scale))
    names = ("bf16_quarter_gain", "bf16_quadratic_gain")
    return {name: each.utility_B - measured.utility_before for name, each in zip(names, found, strict=True)}


@of_update(
    "questions",
    *("grid_evaluated", "interpolation_error"),
    when=lambda measured: measured.paths.interpolation is not None,
)
def _interpolation(measured: MeasuredUpdate) -> Columns:
    return measured.paths.interpolation or {}


@of_update(
    "tokens",
    *("row", "option", "token", "position", "token_id", "text_start", "text_end", "utility_before", "gain", "slope"),
    *("quadratic", "outcome", "quadratic_scale", "quarter_gain", "quadratic_gain", "grid_gain"),
    *("exit_cdf", "exit_depth", "exit_depth_fp64"),  # by `ExitGateTrace`, when the pass is through
    when=lambda measured: measured.settings.tokens,
)
def _tokens(measured: MeasuredUpdate) -> Columns:
    path = measured.paths.tokens
    _, slope, curvature = path.at_scales([0.0], 2)[..., 0]
    quarter, gain = path.at_scales([CONTRACTION, 1.0], 0)[0].unbind(1)
    scale = predicted_scale(slope, 0.5 * curvature)
    columns: Columns = {
        **token_identity(measured.layout),
        "utility_before": path.initial_N,
        "gain": gain,
        "slope": slope,
        "quadratic": 0.5 * curvature,
        "outcome": HostColumn(_outcome),
        "quadratic_scale": scale,
        "quarter_gain": quarter,
        "quadratic_gain": path.at_own(scale, 0)[0],
    }
    return columns if measured.quick else columns | {"grid_gain": path.at_scales(list(GRID), 0)[0].float()}


@of_update(
    "longer_steps",
    *("end_slope", "gains", "quadratic_scale", "quadratic_gain"),
    when=lambda measured: measured.settings.scales_to is not None,
)
def _longer_steps(measured: MeasuredUpdate) -> Columns:
    """Steps longer than the proposed one: φ'(1), φ at 0, 0.05, …, S, and the maximiser of Aα + Qα² on [0, S].

    φ'(1) > 0 says that the step was too short. The fused kernels of the readout know [0, 1]; beyond it scales are read
    in float64, on a GPU as well.
    """
    path, end = measured.paths.questions, measured.settings.scales_to
    assert end is not None, "asked for"
    # The slope first: what is evaluated with derivatives is not evaluated again without.
    _, end_slope = path.at_scales([1.0], 1)[..., 0]
    _, slope, curvature = path.at_scales([0.0], 2)[..., 0]
    # With α = Sβ the maximiser is S times that of SAβ + S²Qβ² over [0, 1].
    scale = end * predicted_scale(end * slope, end * end * (0.5 * curvature))
    return {
        "end_slope": end_slope,
        "gains": path.at_scales(scales_up_to(end).tolist(), 0)[0],
        "quadratic_scale": scale,
        # With a slope that is not stored: the kernels of an affine head that answer values alone know [0, 1] only.
        "quadratic_gain": path.at_own(scale, 1 if measured.readout.is_affine else 0)[0],
    }


@of_update("questions", "scalar_quadratic", when=_from_grid_on, paths=False)
def _scalar_check(measured: MeasuredUpdate) -> Columns:
    checked = [question.row < measured.settings.scalar_checks for question in measured.layout.questions]
    return {"scalar_quadratic": scalar_check(measured.readout, measured.update, checked)}


@of_update(
    "certificates",
    *("outcome", "prediction_sign", "recovered", "arithmetic", "utility", "slope", "quadratic", "gain", "quarter_gain"),
    *("predicted_scale", "predicted_gain", "L_D", "safe_scale", "C", "regret_high"),
    when=lambda measured: measured.settings.certify,
    paths=False,
)
def _certificates(measured: MeasuredUpdate) -> Columns:
    head = measured.readout.model.head
    assert head is not None, "only affine readouts are certified, which is checked before anything runs"
    return certificate_columns(head, measured.update)


@of_update("questions", "endpoint_replay", when=lambda m: m.settings.paper_bracket is not None, paths=False)
def _endpoint_replay(measured: MeasuredUpdate) -> Columns:
    ends = measured.utility_before, measured.utility_after
    return {"endpoint_replay": endpoint_replay(measured.readout, measured.update, *ends)}


_BOTH = ("slope", "quadratic", "gain", "state_gap", "decomposition_residual", "predicted_scale", "predicted_gain")
_OPTIMUM = ("optimum_low", "optimum_high", "optimum_kind", "optimum_gain_low", "optimum_gain_high")
_SAMPLED = ("sampled_curvature", "sampled_convexity", "sampled_third", "quarter_gain")
_CONCAVE = ("M", "L_D", "mu", "C_upper", "S", "safe_scale", "safe_gain", "boundary")
_BRACKET = ("optimum_slope", "optimum_curvature")
_SEARCHED = ("third_absolute_gap", "third_relative_gap", "refined_change")


@of_update(
    "questions",
    *(f"fp64_{name}" for name in (*_BOTH, *_OPTIMUM, *_SAMPLED, *_CONCAVE, *_BRACKET, *_SEARCHED)),
    when=_full,
    paths=False,
)
def _fp64(measured: MeasuredUpdate) -> Columns:
    return measured.analysis.questions


@of_update(
    "paths",
    *("gain", "slope", "curvature", "third"),
    when=lambda measured: _full(measured) and measured.settings.paths,
    paths=False,
)
def _path_nodes(measured: MeasuredUpdate) -> Columns:
    return measured.analysis.nodes


@of_depth("example_id", "depth", "utility")
def _utility(measured: MeasuredDepth) -> Columns:
    questions = measured.layout.questions
    return {
        "example_id": _ids(questions),
        "depth": np.full(len(questions), measured.depth),
        "utility": measured.reading.utility_B,
    }


@of_depth(
    *("option_scores", "option_logliks", "chosen_option"),
    when=lambda measured: measured.layout.is_options,
)
def _options(measured: MeasuredDepth) -> Columns:
    bounds = np.cumsum([question.sequences for question in measured.layout.questions])[:-1]

    def by_question(_: Columns, values_R: np.ndarray[Any, Any]) -> list[list[float]]:
        return [share.tolist() for share in np.split(values_R, bounds)]

    return {
        "option_scores": HostColumn(by_question, measured.reading.scores_R),
        "option_logliks": HostColumn(by_question, measured.reading.sums_R),
        "chosen_option": HostColumn(lambda columns: [int(np.argmax(scores)) for scores in columns["option_scores"]]),
    }
