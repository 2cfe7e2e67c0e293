"""Which function makes which stored columns of an update and of a depth.

A producer declares a table, the columns that it returns, in order, and when it applies; the pass calls those that do.
Adding a column takes its declaration in `store.schema` and a producer here. `trace` has its own in `tokens_and_trace`,
`examples` in `batching`: they follow from states and texts, not from an update.

Nothing here waits for the device, except what level full and certificates search on the host: columns are tensors, or
`HostColumn`s that follow from the columns before them.

Shapes: N reference tokens, B questions, K scales.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loopscope.measuring.checks import certificate_columns, endpoint_replay, exact_kl, scalar_check
from loopscope.measuring.config import MeasureConfig
from loopscope.measuring.fp64 import analyse
from loopscope.measuring.readouts import GeneralReadout, OutputChange, Reading, Readout, UpdatePaths
from loopscope.measuring.tokens_and_trace import token_identity
from loopscope.measuring.update import Columns, HostColumn, Layout, Update, predicted_scale, state_change
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

    def __post_init__(self) -> None:
        self.layout, self.quick = self.update.layout, self.settings.level is Level.QUICK

    @property
    def paths(self) -> UpdatePaths:
        """φ of tokens and questions; gone when what does not need them runs."""
        assert self.known_paths is not None, "declare the producer with `paths=True`"
        return self.known_paths

    @property
    def outputs(self) -> OutputChange:
        """How the output distributions differ; not at level quick."""
        assert self.paths.outputs is not None, "read at every level but quick"
        return self.paths.outputs

    @cached_property
    def derivatives(self) -> Tensor:
        """φ and two derivatives at the scales of the curvature path, or at 0, [3, B, K]."""
        return self.paths.questions.at_scales([0.0] if self.quick else list(CURVATURE_SCALES), 2)

    @cached_property
    def gains(self) -> Tensor:
        """φ on the grid, or at 1, [B, K]; the last one is ΔU."""
        # Derivatives first: through a nonlinear readout they are what costs, and they bring the values along.
        _ = self.derivatives
        return self.paths.questions.at_scales([1.0] if self.quick else list(GRID), 0)[0]

    @cached_property
    def scale(self) -> Tensor:
        """α̂, [B]."""
        return predicted_scale(self.derivatives[1, :, 0], 0.5 * self.derivatives[2, :, 0])

    @cached_property
    def utility_before(self) -> Tensor:
        """U(H), [B]."""
        return self.paths.before.utility_B

    @cached_property
    def analysis(self) -> tuple[Columns, Columns]:
        """The FP64 path analysis: columns of `questions` and of `paths`."""
        return analyse(self.readout, self.update, self.settings.paper_bracket)


@dataclass(frozen=True)
class MeasuredDepth:
    """What the states after some loops say."""

    depth: int
    reading: Reading
    layout: Layout


@dataclass(frozen=True)
class Producer:
    """A function that makes some columns of one table.

    Attributes:
        table: the table; producers of `depths` are given a `MeasuredDepth`, the others a `MeasuredUpdate`.
        columns: their names.
        applies: whether the columns are asked for and exist; elsewhere they are null.
        make: the function; it returns the columns in order, or those that exist by name.
        uses_paths: whether it reads `MeasuredUpdate.paths`, which are given back before the others run.
    """

    table: str
    columns: tuple[str, ...]
    applies: Callable[[Any], bool]
    make: Callable[[Any], Sequence[Any] | Columns]
    uses_paths: bool = True


PRODUCERS: list[Producer] = []


def produces(
    table: str, *columns: str, when: Callable[[Any], bool] = lambda _: True, paths: bool = True
) -> Callable[[Any], Any]:
    """Declare the producer of some columns."""

    def declare(make: Any) -> Any:
        PRODUCERS.append(Producer(table, columns, when, make, paths))
        return make

    return declare


def tables_of(measured: MeasuredUpdate | MeasuredDepth) -> Tables:
    """The rows of every table that there are for an update, but for its transition, or for a depth."""
    update = measured if isinstance(measured, MeasuredUpdate) else None
    needed = [one for one in PRODUCERS if (one.table == "depths") is (update is None) and one.applies(measured)]
    rows_B = np.asarray([question.row for question in measured.layout.questions])
    tables: Tables = {}
    for producer in sorted(needed, key=lambda one: not one.uses_paths):
        if update is not None and not producer.uses_paths:
            update.known_paths = None
        made = producer.make(measured)
        rows = made if isinstance(made, dict) else dict(zip(producer.columns, made, strict=True))
        tables.setdefault(producer.table, {"row": rows_B}).update(rows)
    return tables


def _from_grid_on(measured: MeasuredUpdate) -> bool:
    return not measured.quick


def _full(measured: MeasuredUpdate) -> bool:
    return measured.settings.level is Level.FULL


def _outcome(columns: Columns) -> np.ndarray[Any, Any]:
    return np.atleast_1d(classify(columns["slope"], columns["gain"]))


@produces("questions", "example_id", "source_row")
def _identity(measured: MeasuredUpdate) -> Sequence[Any]:
    examples = [question.example for question in measured.layout.questions]
    return [example.id for example in examples], np.asarray([example.source_row for example in examples])


@produces("questions", "utility_before", "utility_after", "gain", "slope", "quadratic", "outcome", "quadratic_scale")
def _coefficients(measured: MeasuredUpdate) -> Sequence[Any]:
    before, gain, (_, slope, curvature) = measured.utility_before, measured.gains[:, -1], measured.derivatives[..., 0]
    return before, before + gain, gain, slope, 0.5 * curvature, HostColumn(_outcome), measured.scale


@produces("questions", "quarter_gain", "quadratic_gain", when=lambda m: m.quick and m.settings.short_steps)
def _short_steps(measured: MeasuredUpdate) -> Sequence[Any]:
    """What a monitor needs at level quick: the gains of a quarter step and of the quadratic step."""
    scale, readout = measured.scale, measured.readout
    if not isinstance(readout, GeneralReadout):
        path = measured.paths.questions
        return path.at_scales([CONTRACTION], 0)[0, :, 0], path.at_own(scale, 0)[0]
    found = readout.read_steps(measured.update, (torch.full_like(scale, CONTRACTION), scale))
    quarter, quadratic = (reading.utility_B - measured.utility_before for reading in found)
    return quarter, torch.where(scale == 0.0, 0.0, quadratic)


@produces("questions", "grid_gain", "curvature_path", "quadratic_gain", when=_from_grid_on)
def _grid(measured: MeasuredUpdate) -> Sequence[Any]:
    return measured.gains, measured.derivatives[2], measured.paths.questions.at_own(measured.scale, 0)[0]


@produces("questions", "output_kl", "entropy_change", when=_from_grid_on)
def _outputs(measured: MeasuredUpdate) -> Sequence[Any]:
    return [measured.layout.question_mean(values_R) for values_R in measured.outputs]


@produces(
    *("questions", "kl_correction", "kl_slope", "kl_gain"),
    when=lambda m: not m.quick and m.readout.is_affine and m.layout.options is None,
)
def _exact_kl(measured: MeasuredUpdate) -> Columns:
    """The correction of a reference solution; under the paper's protocol with A and ΔU, all from FP32 logits."""
    if measured.settings.paper_bracket is None:
        return {"kl_correction": measured.outputs.divergence_R}
    slope, gain, correction = exact_kl(measured.readout, measured.update).unbind(1)
    return {"kl_correction": correction, "kl_slope": slope, "kl_gain": gain}


@produces("questions", "update_norm", "relative_change", "cosine_change", when=_from_grid_on)
def _states(measured: MeasuredUpdate) -> Sequence[Any]:
    return state_change(measured.update)


@produces("questions", "bf16_quarter_gain", "bf16_quadratic_gain", when=_from_grid_on)
def _interventions(measured: MeasuredUpdate) -> Sequence[Any]:
    scales = torch.full_like(measured.scale, CONTRACTION), measured.scale
    found = measured.readout.read_rounded(measured.update, scales)
    return [reading.utility_B - measured.utility_before for reading in found]


@produces("questions", "grid_evaluated", "interpolation_error", when=lambda m: m.paths.interpolation is not None)
def _interpolation(measured: MeasuredUpdate) -> Columns:
    return measured.paths.interpolation or {}


@produces(
    *("tokens", "row", "option", "token", "position", "token_id", "text_start", "text_end", "utility_before", "gain"),
    *("slope", "quadratic", "outcome", "quadratic_scale", "quarter_gain", "quadratic_gain", "grid_gain"),
    *("exit_cdf", "exit_depth", "exit_depth_fp64"),  # by `ExitGateTrace`, when the pass is through
    when=lambda m: m.settings.tokens,
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


@produces(
    *("longer_steps", "end_slope", "gains", "quadratic_scale", "quadratic_gain"),
    when=lambda m: m.settings.scales_to is not None,
)
def _longer_steps(measured: MeasuredUpdate) -> Sequence[Any]:
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
    gains = path.at_scales(scales_up_to(end).tolist(), 0)[0]
    # With a slope that is not stored: the kernels of an affine head that answer values alone know [0, 1] only.
    return end_slope, gains, scale, path.at_own(scale, 1 if measured.readout.is_affine else 0)[0]


@produces("questions", "scalar_quadratic", when=_from_grid_on, paths=False)
def _scalar_check(measured: MeasuredUpdate) -> Sequence[Any]:
    checked = [question.row < measured.settings.scalar_checks for question in measured.layout.questions]
    return [scalar_check(measured.readout, measured.update, checked)]


@produces(
    *("certificates", "outcome", "prediction_sign", "recovered", "arithmetic", "utility", "slope", "quadratic", "gain"),
    *("quarter_gain", "predicted_scale", "predicted_gain", "L_D", "safe_scale", "C", "regret_high"),
    when=lambda m: m.settings.certify,
    paths=False,
)
def _certificates(measured: MeasuredUpdate) -> Columns:
    return certificate_columns(measured.readout, measured.update)


@produces("questions", "endpoint_replay", when=lambda m: m.settings.paper_bracket is not None, paths=False)
def _endpoint_replay(measured: MeasuredUpdate) -> Sequence[Any]:
    ends = measured.utility_before, measured.utility_before + measured.gains[:, -1]
    return [endpoint_replay(measured.readout, measured.update, *ends)]


_BOTH = ("slope", "quadratic", "gain", "state_gap", "decomposition_residual", "predicted_scale", "predicted_gain")
_OPTIMUM = ("optimum_low", "optimum_high", "optimum_kind", "optimum_gain_low", "optimum_gain_high")
_SAMPLED = ("sampled_curvature", "sampled_convexity", "sampled_third", "quarter_gain")
_CONCAVE = ("M", "L_D", "mu", "C_upper", "S", "safe_scale", "safe_gain", "boundary")
_BRACKET = ("optimum_slope", "optimum_curvature")
_SEARCHED = ("third_absolute_gap", "third_relative_gap", "refined_change")


@produces(
    *("questions", *(f"fp64_{name}" for name in (*_BOTH, *_OPTIMUM, *_SAMPLED, *_CONCAVE, *_BRACKET, *_SEARCHED))),
    when=_full,
    paths=False,
)
def _fp64(measured: MeasuredUpdate) -> Columns:
    return measured.analysis[0]


@produces(*("paths", "gain", "slope", "curvature", "third"), when=lambda m: _full(m) and m.settings.paths, paths=False)
def _path_nodes(measured: MeasuredUpdate) -> Columns:
    return measured.analysis[1]


@produces("depths", "example_id", "depth", "utility")
def _utility(measured: MeasuredDepth) -> Sequence[Any]:
    ids = [question.example.id for question in measured.layout.questions]
    return ids, np.full(len(ids), measured.depth), measured.reading.utility_B


@produces("depths", "option_scores", "option_logliks", "chosen_option", when=lambda m: m.layout.options is not None)
def _options(measured: MeasuredDepth) -> Sequence[Any]:
    bounds = np.cumsum([len(question.example.sequences) for question in measured.layout.questions])[:-1]

    def by_question(_: Columns, values_R: np.ndarray[Any, Any]) -> list[list[float]]:
        return [share.tolist() for share in np.split(values_R, bounds)]

    scores, sums = (HostColumn(by_question, values) for values in (measured.reading.scores_R, measured.reading.sums_R))
    return scores, sums, HostColumn(lambda columns: [int(np.argmax(row)) for row in columns["option_scores"]])
