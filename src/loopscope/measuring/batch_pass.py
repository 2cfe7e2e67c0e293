"""One pass of a batch to the deepest loop: a few states alive at a time, everything read as they come.

Depth by depth the utility is read, and for every requested update the columns that its level asks for.
Two states are alive at a time; of consecutive updates that are surveyed together, all of theirs; of a chord k → R, the
state k until R is there. A chord is an update like any other, analysed by itself.
`launch` asks the device for everything without waiting (searches of level full on the host aside); `finish` puts rows
together on the host when the numbers are there, by which time the next batch is running.

Which function makes which stored columns: a **producer** declares a table, the columns that it returns, in order, and
when it applies. Adding a column takes its declaration in `store.schema` and a producer here. `trace` has its own in
`tokens_and_trace`, `examples` in `batching`: they follow from states and texts, not from an update. Columns are
tensors, or `HostColumn`s that follow from the columns before them.

Shapes: N reference tokens, R sequences, B questions, S positions, D hidden width, K scales.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loopscope.errors import LoopscopeError, setting
from loopscope.measuring.batching import Question, collate
from loopscope.measuring.checks import certificate_columns, endpoint_replay, exact_kl, scalar_check
from loopscope.measuring.config import MeasureConfig
from loopscope.measuring.fp64 import analyse
from loopscope.measuring.readouts import GeneralReadout, Reading, Readout, readout_of
from loopscope.measuring.tokens_and_trace import ExitGateTrace, Trace, token_identity
from loopscope.measuring.update import (
    Columns,
    HostColumn,
    Layout,
    PendingColumns,
    Update,
    array,
    ordered_mean,
    pinned,
    predicted_scale,
    stacked,
    state_change,
)
from loopscope.models.protocol import LoopedModel, exit_gate_of
from loopscope.models.walk import Walk, readout_asks_context
from loopscope.path import CONTRACTION, CURVATURE_SCALES, GRID, classify, scales_up_to
from loopscope.store.schema import CHORD, Level, ends_of

Tables = dict[str, Columns]
PAPER_BRACKET = 1e-4
"""The paper's widest bracket around an optimum, by bisection; with its envelope, FP32 residuals, adaptive extremes."""


class BatchPass:
    """A batch that goes through the loops of a model.

    Attributes:
        readout: how its states were read.
    """

    def __init__(
        self, model: LoopedModel, settings: MeasureConfig, questions: Sequence[Question], *, careful: bool = False
    ) -> None:
        self._model, self._settings, self._careful, self._questions = model, settings, careful, questions
        packing = collate(questions, settings.batch)
        self._packing = (pinned(packing) if model.device.type == "cuda" else packing).to(model.device)
        self._layout = Layout.of(questions, self._packing.sequences, model.device)
        self.readout = readout_of(model, getattr(torch, settings.readout_dtype), careful=careful)
        self._finite: dict[int, Tensor] = {}
        self._names: list[str] = []
        self._pending: PendingColumns | None = None

    @torch.no_grad()
    def launch(self) -> BatchPass:
        """Ask the device for everything."""
        try:
            tables = self._tables()
        except LoopscopeError:
            # Whatever was refused, the user must first know of a state that is not finite.
            self._finite_check()({}, *map(array, self._finite.values()))
            raise
        finite: Columns = {"finite": HostColumn(self._finite_check(), tuple(self._finite.values()))}
        self._names = [name for each in tables for name in each]
        self._pending = PendingColumns([finite, *(columns for each in tables for columns in each.values())])
        return self

    def finish(self) -> Tables | None:
        """The rows of the batch in every table but `examples`, when the numbers are here.

        None where kernels gave up tokens: measure the batch again, waiting for the device wherever that may happen.
        """
        assert self._pending is not None, "launched before"
        pending = self._pending.columns()
        # First of all whether the states were finite at all: if not, no other calculation will help.
        next(pending)
        if not self._careful and not self._pending.is_finite():
            return None
        tables: dict[str, list[Columns]] = {"questions": []}
        for name, columns in zip(self._names, pending, strict=True):
            tables.setdefault(name, []).append(columns)
        return {name: stacked(found) for name, found in tables.items()}

    def _tables(self) -> list[Tables]:
        settings, readout, model = self._settings, self.readout, self._model
        packing, layout = self._packing, self._layout
        gate = exit_gate_of(model) if settings.tokens else None
        deepest = max(settings.depths[-1], 0 if gate is None else gate.budget)
        walk = Walk.of(model, packing.batch, deepest)
        if readout_asks_context(model):
            context = walk.context if packing.place_RS is None else model.embed(packing.sequences)
            layout = dataclasses.replace(layout, context=context)
        exits = None if gate is None else ExitGateTrace(gate, layout, settings.exit_threshold)
        trace = Trace(readout, layout, settings) if settings.trace else None
        readings: dict[int, Reading] = {}
        runs = list(consecutive(settings.transitions, 1 if settings.level is Level.FULL else readout.most_consecutive))
        kept: dict[int, Tensor] = {}
        updates: dict[int, Tables] = {}
        for depth in range(deepest + 1):
            state = kept[depth] = packing.separate(walk.to(depth).state)
            if depth in settings.depths:
                # Its sum is finite where it is, in an arithmetic that cannot overflow.
                finite_RS = state.sum(2, dtype=torch.float64).isfinite()
                self._finite[depth] = (finite_RS | ~layout.batch.attention_mask).all(1)
            for run in runs:
                if ends_of(run[-1])[1] == depth:
                    together = [Update(layout, *(kept[end] for end in ends_of(transition))) for transition in run]
                    updates |= self._updates(run, together, readings, trace)
            runs = [run for run in runs if ends_of(run[-1])[1] > depth]
            needed = {end for run in runs for transition in run for end in ends_of(transition)}
            kept = {at: held for at, held in kept.items() if at in needed}
            for observer in (exits, trace):
                if observer is not None:
                    observer.see(depth, state)
            if depth in settings.depths and not {depth, depth - 1} & {*settings.transitions}:
                readings[depth] = readout.read(state, layout)
        if exits is not None:
            exits.finish(updates)
        others = [] if trace is None else trace.finish()
        return [
            *updates.values(),
            *others,
            *(tables_of(MeasuredDepth(depth, readings[depth], layout)) for depth in sorted(readings)),
        ]

    def _updates(
        self, run: Sequence[int], updates: Sequence[Update], found: dict[int, Reading], trace: Trace | None
    ) -> dict[int, Tables]:
        """The tables of updates that are surveyed together, by transition; the readings of their ends are noted."""
        tables = dict[int, Tables]()
        survey = self.readout.paths(updates, self._settings, found.get(run[0]) if run[0] < CHORD else None)
        for transition, update in zip(run, updates, strict=True):
            paths = survey.pop(0)
            if transition < CHORD:  # the readings of a chord's ends are those of other updates or of their own
                found[transition], found[transition + 1] = paths.before, paths.after
                if trace is not None:
                    trace.see_update(transition, paths)
            measured = MeasuredUpdate(update, self.readout, self._settings, paths)
            del paths
            tables[transition] = tables_of(measured)
            for columns in tables[transition].values():
                columns["transition"] = np.full(len(columns["row"]), transition)
        return tables

    def _finite_check(self) -> Callable[..., None]:
        # Without the pass itself, which would keep its own tensors alive.
        return functools.partial(_require_finite, self._model.name, self._questions, list(self._finite))


def _require_finite(
    model: str, questions: Sequence[Question], depths: Sequence[int], _: Columns, *finite_R: np.ndarray[Any, Any]
) -> None:
    """Name the question whose state overflowed, instead of storing a NaN."""
    owner = [question for question in questions for _ in question.example.sequences]
    for depth, finite in zip(depths, finite_R, strict=True):
        if not finite.all():
            raise LoopscopeError(
                f"{model} has no finite state for question {owner[int(finite.argmin())].example.id}"
                f" at depth {depth}: try {setting('dtype', 'float32')}, fewer loops, or leave the question out"
            )


def consecutive(transitions: Sequence[int], most: int) -> Iterator[list[int]]:
    """Transitions that follow one another, at most so many at a time; chords by themselves.

    >>> list(consecutive([1, 2, 3, 5], 2))
    [[1, 2], [3], [5]]
    """
    run: list[int] = []
    for transition in transitions:
        if run and (len(run) == most or run[-1] != transition - 1 or transition >= CHORD):
            yield run
            run = []
        run = [*run, transition]
    if run:
        yield run


@dataclass
class MeasuredUpdate:
    """An update, its paths, and what several producers need of them.

    Attributes:
        paths: φ of tokens and questions; given back when what does not need them runs.
        derivatives: φ and two derivatives at the scales of the curvature path, or at 0, [3, B, K].
        gains: φ on the grid, or at 1, [B, K]; the last one is ΔU.
        scale: α̂, [B].
    """

    update: Update
    readout: Readout
    settings: MeasureConfig
    paths: Any  # UpdatePaths, until they are given back

    def __post_init__(self) -> None:
        self.layout, self.quick = self.update.layout, self.settings.level is Level.QUICK
        self.utility_before = self.paths.before.utility_B
        # Derivatives first: through a nonlinear readout they are what costs, and they bring the values along.
        questions = self.paths.questions
        self.derivatives: Tensor = questions.at_scales([0.0] if self.quick else list(CURVATURE_SCALES), 2)
        self.gains: Tensor = questions.at_scales([1.0] if self.quick else list(GRID), 0)[0]
        self.scale = predicted_scale(self.derivatives[1, :, 0], 0.5 * self.derivatives[2, :, 0])
        paper = self.settings.protocol == "paper" and not self.quick
        self.paper_bracket = PAPER_BRACKET if paper else None

    @cached_property
    def analysis(self) -> tuple[Columns, Columns]:
        """The FP64 path analysis: columns of `questions` and of `paths`."""
        return analyse(self.readout, self.update, self.paper_bracket)


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
    of_depth = isinstance(measured, MeasuredDepth)
    needed = [one for one in PRODUCERS if (one.table == "depths") is of_depth and one.applies(measured)]
    rows_B = np.asarray([question.row for question in measured.layout.questions])
    tables: Tables = {}
    for producer in sorted(needed, key=lambda one: not one.uses_paths):
        if not producer.uses_paths and not of_depth:
            measured.paths = None  # type: ignore[union-attr]
        made = producer.make(measured)
        rows = made if isinstance(made, dict) else dict(zip(producer.columns, made, strict=True))
        tables.setdefault(producer.table, {"row": rows_B}).update(rows)
    return tables


OUTCOME = HostColumn(lambda columns: np.atleast_1d(classify(columns["slope"], columns["gain"])))


@produces(
    *("questions", "example_id", "source_row", "utility_before", "utility_after", "gain", "slope", "quadratic"),
    *("outcome", "quadratic_scale"),
)
def _coefficients(measured: MeasuredUpdate) -> Sequence[Any]:
    examples = [question.example for question in measured.layout.questions]
    before, gain, (_, slope, curvature) = measured.utility_before, measured.gains[:, -1], measured.derivatives[..., 0]
    identity = [example.id for example in examples], np.asarray([example.source_row for example in examples])
    return *identity, before, before + gain, gain, slope, 0.5 * curvature, OUTCOME, measured.scale


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


@produces(
    *("questions", "grid_gain", "curvature_path", "quadratic_gain", "output_kl", "entropy_change"),
    *("update_norm", "relative_change", "cosine_change", "bf16_quarter_gain", "bf16_quadratic_gain"),
    when=lambda m: not m.quick,
)
def _grid(measured: MeasuredUpdate) -> Sequence[Any]:
    paths, scale, sequences_B = measured.paths, measured.scale, measured.layout.sequences_B
    outputs = [ordered_mean(values_R, sequences_B) for values_R in paths.outputs]
    rounded = measured.readout.read_rounded(measured.update, (torch.full_like(scale, CONTRACTION), scale))
    interventions = [reading.utility_B - measured.utility_before for reading in rounded]
    along = measured.gains, measured.derivatives[2], paths.questions.at_own(scale, 0)[0]
    return *along, *outputs, *state_change(measured.update), *interventions


@produces(
    *("questions", "kl_correction", "kl_slope", "kl_gain"),
    when=lambda m: not m.quick and m.readout.is_affine and m.layout.options is None,
)
def _exact_kl(measured: MeasuredUpdate) -> Columns:
    """The correction of a reference solution; under the paper's protocol with A and ΔU, all from FP32 logits."""
    if measured.paper_bracket is None:
        return {"kl_correction": measured.paths.outputs.divergence_R}
    slope, gain, correction = exact_kl(measured.readout, measured.update).unbind(1)
    return {"kl_correction": correction, "kl_slope": slope, "kl_gain": gain}


produces("questions", "grid_evaluated", "interpolation_error", when=lambda m: m.paths.interpolation is not None)(
    lambda m: m.paths.interpolation
)


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
        "outcome": OUTCOME,
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


produces("questions", "scalar_quadratic", when=lambda m: not m.quick, paths=False)(
    lambda m: [scalar_check(m.readout, m.update, m.settings.scalar_checks)]
)
produces(
    *("certificates", "outcome", "prediction_sign", "recovered", "arithmetic", "utility", "slope", "quadratic", "gain"),
    *("quarter_gain", "predicted_scale", "predicted_gain", "L_D", "safe_scale", "C", "regret_high"),
    when=lambda m: m.settings.certify,
    paths=False,
)(lambda m: certificate_columns(m.readout, m.update))
produces("questions", "endpoint_replay", when=lambda m: m.paper_bracket is not None, paths=False)(
    lambda m: [endpoint_replay(m.readout, m.update, m.utility_before, m.utility_before + m.gains[:, -1])]
)

_BOTH = ("slope", "quadratic", "gain", "state_gap", "decomposition_residual", "predicted_scale", "predicted_gain")
_OPTIMUM = ("optimum_low", "optimum_high", "optimum_kind", "optimum_gain_low", "optimum_gain_high")
_SAMPLED = ("sampled_curvature", "sampled_convexity", "sampled_third", "quarter_gain")
_CONCAVE = ("M", "L_D", "mu", "C_upper", "S", "safe_scale", "safe_gain", "boundary")
_BRACKET = ("optimum_slope", "optimum_curvature")
_SEARCHED = ("third_absolute_gap", "third_relative_gap", "refined_change")


produces(
    *("questions", *(f"fp64_{name}" for name in (*_BOTH, *_OPTIMUM, *_SAMPLED, *_CONCAVE, *_BRACKET, *_SEARCHED))),
    when=lambda m: m.settings.level is Level.FULL,
    paths=False,
)(lambda m: m.analysis[0])
produces("paths", "gain", "slope", "curvature", "third", when=lambda m: m.settings.paths, paths=False)(
    lambda m: m.analysis[1]
)


@produces("depths", "example_id", "depth", "utility")
def _utility(measured: MeasuredDepth) -> Sequence[Any]:
    ids = [question.example.id for question in measured.layout.questions]
    return ids, np.full(len(ids), measured.depth), measured.reading.utility_B


@produces("depths", "option_scores", "option_logliks", "chosen_option", when=lambda m: m.layout.options is not None)
def _options(measured: MeasuredDepth) -> Sequence[Any]:
    bounds = np.cumsum([len(question.example.sequences) for question in measured.layout.questions])[:-1]

    def by_question(_: Columns, values_R: np.ndarray[Any, Any]) -> list[list[float]]:
        return [share.tolist() for share in np.split(values_R, bounds)]

    reading = measured.reading
    scores, sums = (HostColumn(by_question, (values,)) for values in (reading.scores_R, reading.sums_R))
    return scores, sums, HostColumn(lambda columns: [int(np.argmax(row)) for row in columns["option_scores"]])
