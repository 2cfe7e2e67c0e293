"""What states say about the references (Appendix "Task Utilities"): two kinds of readout behind one interface.

    solution:  U = mean_j log p(y_j)
    options:   U = s_k* − log Σ_k exp s_k,   s_k = mean_j log p(y_j^(k))

Tokens, sequences and questions share every evaluation; the coarser paths are made from the tokens'. The readout runs in
its own dtype; log-softmax and everything after it in float64. Nothing here waits for the device, unless `careful`: then
tokens that the kernels give up are evaluated otherwise. Without, such a token is NaN, and the batch is measured again.

Through a nonlinear readout φ is interpolated between the five scales of its derivatives where that is as good as
evaluating it: the error is measured on every question, and what it may be is the rounding of the readout itself.

A readout that may look at all positions is read a group of whole sequences at a time: as many as fit into memory. Where
it is a body and a head, the head reads a few tokens at a time, and it is the body's activations that must fit; of any
other readout the logits must. Rows are cut to the longest sequence of their group.

Shapes: N reference tokens of a batch, n of a group or chunk, R sequences, B questions, S positions, D hidden width, V
vocabulary, K scales.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from loopscope.kernels.choice import takes_kernel
from loopscope.measuring.batching import groups_within
from loopscope.measuring.config import MeasureConfig
from loopscope.measuring.update import Columns, Layout, Update, interpolated, ordered_mean, ordered_sum
from loopscope.models.layers.blocks import linear
from loopscope.models.protocol import AffineHead, Context, LoopedModel
from loopscope.models.walk import halves, read, readout_asks_context
from loopscope.path import CURVATURE_SCALES, GRID
from loopscope.readout.affine.path import AffinePath, affine_path, affine_path_from_states, surveys
from loopscope.readout.autograd import Derivation
from loopscope.readout.blocks import blocks, full_precision_products
from loopscope.readout.composed import NODES, InterpolatedPath, JoinedPath, MeanPath, RememberedPath, interpolate
from loopscope.readout.general.path import nonlinear_path_from_states
from loopscope.readout.general.token_derivatives import logit_chunks
from loopscope.readout.options import OptionPath
from loopscope.readout.path import UtilityPath
from loopscope.readout.softmax import Softmax, SoftmaxChange, log_probability
from loopscope.store.schema import Level

LOGITS = 1 << 25
"""Logits that exist at a time: a quarter of a gigabyte in float64."""
_STATES = {"cpu": 1 << 22, "cuda": 1 << 23}
"""Entries of the states that a body reads at a time; its activations hold some fifty times as many."""
CHUNK = {"cpu": 1 << 20, "cuda": 1 << 26}
"""Logits of a state at a time in a trace, which makes ten arrays of that size of them, where not `LOGITS`."""
_HALF = (torch.bfloat16, torch.float16)
_COLUMNS = 16
"""Rows are cut to a multiple of this, as kernels like them."""
_GPU_BLOCK = 1 << 24
"""Logits of a block on a GPU: 128 MiB in float64."""
_MOST_CONSECUTIVE = 7
"""Consecutive updates that are surveyed together: one more state of a batch is alive then."""
ROUNDINGS = 8.0
"""What interpolation may be off by: so many roundings of 1 + |score|, in the readout's arithmetic."""
VALUES = 8.0
"""How many times that the evaluated values may lie apart from the polynomial: they are rounded differences."""
_GRID_SURVEY = len(GRID), CURVATURE_SCALES
GENERAL = "general"
"""Taylor mode through a readout that is not affine, in `backends_used`; nested forward mode is "nested" there."""
_DERIVATIONS: WeakKeyDictionary[Any, Derivation] = WeakKeyDictionary()
"""How each model's readout is differentiated, which is found out once."""


@dataclass(frozen=True)
class Reading:
    """What a state says about the references of a batch, float64.

    Attributes:
        log_p_N: log probability of each reference token.
        sums_R: summed log probability of each sequence.
        scores_R: mean log probability of each sequence.
        utility_B: U of each question.
    """

    log_p_N: Tensor
    sums_R: Tensor
    scores_R: Tensor
    utility_B: Tensor

    @classmethod
    def of(cls, log_p_N: Tensor, layout: Layout) -> Reading:
        """From the log probabilities."""
        sums_R = ordered_sum(log_p_N, layout.tokens_R)
        scores_R = utility_B = sums_R / layout.tokens_R
        if layout.options is not None:
            options = layout.options
            utility_B = log_probability(options.gathered(scores_R, -torch.inf), options.target)
        return cls(log_p_N, sums_R, scores_R, utility_B)


class OutputChange(NamedTuple):
    """How the output distributions of H and H⁺ differ, averaged over each sequence's prediction positions, [R] each.

    Attributes:
        divergence_R: KL(p(0)‖p(1)).
        entropy_R: the change of entropy from H to H⁺.
    """

    divergence_R: Tensor
    entropy_R: Tensor


@dataclass(frozen=True)
class UpdatePaths:
    """φ of one update of a batch for tokens and questions, and what was read with it.

    Attributes:
        tokens: every reference token.
        questions: every question.
        before: the reading of H.
        after: the reading of H⁺: read, or what the update gained on top of that of H.
        outputs: how the outputs differ; None at level quick, where they cost more.
        interpolation: columns of `questions`; None where every scale of the grid is evaluated.
    """

    tokens: RememberedPath
    questions: UtilityPath
    before: Reading
    after: Reading
    outputs: OutputChange | None
    interpolation: Columns | None = None


class Group(NamedTuple):
    """Whole sequences of a batch and their reference tokens.

    Attributes:
        rows: the sequences.
        width: positions of a row that are read; beyond it there is padding alone.
        positions_n2: where the reference tokens are predicted, rows counted from the group's first.
        sequence_n: the sequence of each, counted from the group's first.
        targets_n: the tokens themselves.
        readout: from states of these rows to logits.
    """

    rows: slice
    width: int
    positions_n2: Tensor
    sequence_n: Tensor
    targets_n: Tensor
    readout: Callable[..., Tensor]

    def cut(self, state_RSD: Tensor) -> Tensor:
        """The group's share of a state."""
        return state_RSD[self.rows, : self.width]


class Chunk(NamedTuple):
    """Logits of some reference tokens at one state or more, [n, V] each."""

    targets_n: Tensor
    logits: list[Tensor]

    def log_probabilities(self, state: int) -> Tensor:
        """Of the targets at one of the states, float64 [n]."""
        z_nV = self.logits[state]
        return log_probability(z_nV if z_nV.is_cuda else z_nV.double(), self.targets_n)


class Readout(ABC):
    """A model's readout in a dtype: readings of states, and φ of updates."""

    is_affine: ClassVar[bool]
    """Whether logits are affine in the state."""
    most_consecutive = 1
    """Consecutive updates that are surveyed together."""

    def __init__(self, model: LoopedModel, dtype: torch.dtype) -> None:
        self.model, self.dtype = model, dtype
        self._used: list[set[str]] = []

    @property
    def backends_used(self) -> set[str]:
        """How φ was computed so far."""
        return set().union(*self._used)

    @property
    def notes(self) -> set[str]:
        """What there is to say about the back ends that were used, one line each."""
        return set()

    def read(self, state_RSD: Tensor, layout: Layout) -> Reading:
        """Log probabilities and U of every question at a state."""
        found = [chunk.log_probabilities(0) for chunk in self.chunks([state_RSD], layout)]
        return Reading.of(torch.cat(found), layout)

    @abstractmethod
    def chunks(self, states: Sequence[Tensor], layout: Layout) -> Iterator[Chunk]:
        """Logits at the prediction positions of some states, without TF32, a few tokens at a time."""

    @abstractmethod
    def paths(self, updates: Sequence[Update], settings: MeasureConfig, before: Reading | None) -> list[UpdatePaths]:
        """φ of every reference token and question of consecutive updates; `before` is the first H's reading, if any."""

    @abstractmethod
    def read_rounded(self, update: Update, scales_B: tuple[Tensor, Tensor]) -> tuple[Reading, Reading]:
        """Readings of the rounded interventions at two scales per question."""

    @abstractmethod
    def fp64_path(self, update: Update) -> UtilityPath:
        """φ of every question with readout and derivatives in FP64."""


class GeneralReadout(Readout):
    """Any readout: all positions of a sequence may matter, and φ is evaluated where it is asked for."""

    is_affine = False

    def __init__(self, model: LoopedModel, dtype: torch.dtype) -> None:
        super().__init__(model, dtype)
        self._derivation = _derivation_of(model)

    @property
    def backends_used(self) -> set[str]:
        """`GENERAL` or "nested", once anything was computed."""
        nested = self._derivation.impl == "nested"
        return {"nested" if nested and name == GENERAL else name for name in super().backends_used}

    @property
    def notes(self) -> set[str]:
        """How derivatives are computed, where that is worth a line."""
        return {self._derivation.note} - {""}

    def groups(self, layout: Layout, dtype: torch.dtype) -> Iterator[Group]:
        """Whole sequences at a time, as many as fit, with their readout in a dtype."""
        model, first, lengths = self.model, 0, layout.lengths
        # Whether the readout is a body and a head that know nothing but the state.
        is_headed = not readout_asks_context(model) and halves(model, self.dtype) is not None
        padded = int(layout.batch.input_ids.shape[1])
        if is_headed:
            entries = _STATES.get(model.device.type, _STATES["cpu"])
            fitting = groups_within(lengths, max(1, entries // model.hidden_size))
        else:
            fitting = groups_within(layout.counts, max(1, LOGITS // model.vocabulary_size))
        for rows in fitting:
            longest = max(lengths[rows.start : rows.stop])
            tokens = slice(first, first + sum(layout.counts[rows.start : rows.stop]))
            row_n, place_n = layout.positions_N2[tokens].unbind(1)
            sequences = slice(rows.start, rows.stop)
            context = None if layout.context is None else layout.context.rows(sequences)
            yield Group(
                sequences,
                min(-(-longest // _COLUMNS) * _COLUMNS, padded) if is_headed else padded,
                torch.stack([row_n - rows.start, place_n], 1),
                layout.sequence_N[tokens] - rows.start,
                layout.targets_N[tokens],
                halves(model, dtype, context) or partial(_whole_readout, model, context, dtype),
            )
            first = tokens.stop

    def chunks(self, states: Sequence[Tensor], layout: Layout) -> Iterator[Chunk]:
        """Logits at the prediction positions of some states, without TF32, a few tokens at a time."""
        for group in self.groups(layout, self.dtype):
            made = [logit_chunks(group.readout, group.cut(state), group.positions_n2, 1) for state in states]
            while True:
                with full_precision_products():
                    found = [chunk for chunks in made if (chunk := next(chunks, None)) is not None]
                if not found:
                    break
                yield Chunk(group.targets_n[found[0].rows], [chunk.logits for chunk in found])

    def read_steps(self, update: Update, scales_B: Sequence[Tensor]) -> list[Reading]:
        """Readings of H + αD, with D in the readout's dtype, at some scales of each question."""
        start, rows = update.before_RSD.to(self.dtype), update.layout.question_R
        moved = update.after_RSD.to(self.dtype) - start
        states = (start + scale_B[rows, None, None].to(start.dtype) * moved for scale_B in scales_B)
        return [self.read(state, update.layout) for state in states]

    def paths(self, updates: Sequence[Update], settings: MeasureConfig, before: Reading | None) -> list[UpdatePaths]:
        """From readings of both ends, and paths of the sequences."""
        (update,) = updates
        layout, quick = update.layout, settings.level is Level.QUICK
        before, after, outputs = self._ends(update, before, outputs=not quick)
        sequences = self.sequences(update, self.dtype)
        scaled: UtilityPath = sequences
        interpolation = None
        if settings.interpolate and not quick:
            tokens, scaled, interpolation = self._interpolated(update, sequences, before, after)
        else:
            tokens = RememberedPath(sequences.per_token(), before.log_p_N)
        if quick:
            tokens.know([1.0], (after.log_p_N - before.log_p_N).reshape(1, -1, 1))
        mean = MeanPath(
            tokens, partial(ordered_mean, lengths=layout.tokens_R), layout.sequence_N, before.scores_R, scaled
        )
        return [UpdatePaths(tokens, _joint(mean, layout), before, after, outputs, interpolation)]

    def read_rounded(self, update: Update, scales_B: tuple[Tensor, Tensor]) -> tuple[Reading, Reading]:
        """From whole states; padding keeps the proposed one."""
        layout = update.layout
        valid = layout.batch.attention_mask.unsqueeze(-1)
        first, second = (
            self.read(
                torch.where(
                    valid,
                    interpolated(update.before_RSD, update.after_RSD, scale_B[layout.question_R, None, None]),
                    update.after_RSD.to(torch.bfloat16).to(update.before_RSD.dtype),
                ),
                layout,
            )
            for scale_B in scales_B
        )
        return first, second

    def fp64_path(self, update: Update) -> UtilityPath:
        """φ of every question with readout and derivatives in FP64."""
        return _joint(self.sequences(update, torch.float64), update.layout)

    def sequences(self, update: Update, dtype: torch.dtype) -> JoinedPath:
        """φ of every sequence's mean log probability."""
        self._used.append({GENERAL})
        paths = []
        for group in self.groups(update.layout, dtype):
            ends = group.cut(update.before_RSD), group.cut(update.after_RSD)
            how: Any = {"dtype": dtype, "impl": self._derivation, "examples": group.sequence_n}
            paths.append(nonlinear_path_from_states(group.readout, *ends, group.targets_n, group.positions_n2, **how))
        return JoinedPath(paths)

    def _ends(
        self, update: Update, before: Reading | None, *, outputs: bool
    ) -> tuple[Reading, Reading, OutputChange | None]:
        """Readings of H and H⁺ and how the outputs differ; H is not read again where nothing asks for it."""
        layout, changes = update.layout, []
        states = [update.after_RSD] if before is not None and not outputs else [update.before_RSD, update.after_RSD]
        log_p: list[list[Tensor]] = [[] for _ in states]
        for chunk in self.chunks(states, layout):
            for at, found in enumerate(log_p):
                found.append(chunk.log_probabilities(at))
            if outputs:
                first_nV, last_nV = chunk.logits
                change = SoftmaxChange(Softmax(first_nV.double()), Softmax(last_nV.double()))
                changes.append((change.divergence_n, change.entropy_n))
        *first, after = (Reading.of(torch.cat(found), layout) for found in log_p)
        if not outputs:
            return before or first[0], after, None
        averaged = (ordered_mean(torch.cat(values), layout.tokens_R) for values in zip(*changes, strict=True))
        return before or first[0], after, OutputChange(*averaged)

    def _interpolated(
        self, update: Update, sequences: JoinedPath, before: Reading, after: Reading
    ) -> tuple[RememberedPath, UtilityPath, Columns]:
        """Tokens whose grid is known, sequences for scales of their own, and columns; waits for the device once."""
        layout = update.layout
        stack_3NK = sequences.per_token().with_utility(NODES, 2)
        found = interpolate(stack_3NK)
        truncation_R, residual_R = (
            ordered_mean(values, layout.tokens_R) for values in (found.truncation_N, found.residual_N)
        )
        allowed_R = ROUNDINGS * torch.finfo(self.dtype).eps * (1.0 + before.scores_R.abs())
        # Both are at least the polynomial's error: one without the rounding of values, one without the derivatives'.
        error_R = torch.minimum(truncation_R, residual_R)
        holds_R = (error_R <= allowed_R) & (residual_R <= VALUES * allowed_R)
        evaluated_B = layout.question_largest((~holds_R).double()) > 0.0
        chosen = evaluated_B.nonzero()[:, 0].tolist()

        grid_NK = found.polynomials.at(GRID)
        of_tokens: tuple[Tensor, UtilityPath] | None = None
        of_sequences: tuple[Tensor, UtilityPath] | None = None
        if chosen:
            again = self.sequences(update.some(chosen), self.dtype)
            member_R = evaluated_B[layout.question_R]
            of_tokens, of_sequences = (member_R[layout.sequence_N], again.per_token()), (member_R, again)
            grid_NK[of_tokens[0], 1:-1] = of_tokens[1].at_scales(list(GRID[1:-1]), 0)[0]
        grid_NK[:, -1] = after.log_p_N - before.log_p_N

        per_token = found.polynomials.at_own
        tokens = RememberedPath(InterpolatedPath(sequences.per_token(), per_token, of_tokens), before.log_p_N)
        at_nodes = grid_NK[:, [GRID.index(node) for node in NODES]]
        tokens.know(NODES, torch.cat([at_nodes.unsqueeze(0), stack_3NK[1:]]))
        tokens.know(GRID, grid_NK.unsqueeze(0))

        def of_each_sequence(scales_R: Tensor) -> Tensor:
            return ordered_mean(per_token(scales_R[layout.sequence_N]), layout.tokens_R)

        columns: Columns = {"grid_evaluated": evaluated_B, "interpolation_error": layout.question_largest(error_R)}
        return tokens, InterpolatedPath(sequences, of_each_sequence, of_sequences), columns


def _whole_readout(
    model: LoopedModel, context: Context | None, dtype: torch.dtype, state_RSD: Tensor, positions_N2: Tensor
) -> Tensor:
    return read(model, state_RSD, positions_N2, dtype, context)


def _derivation_of(model: LoopedModel) -> Derivation:
    try:
        return _DERIVATIONS.setdefault(model, Derivation())
    except TypeError:  # an object without weak references finds out again
        return Derivation()


class AffineReadout(Readout):
    """An affine head: only the states at the prediction positions matter, [N, D].

    One survey of the reference tokens gives everything that a level asks for at common scales: U(H), φ on the grid,
    derivatives, and how the output distributions differ.
    """

    is_affine = True

    def __init__(self, model: LoopedModel, head: AffineHead, dtype: torch.dtype, *, careful: bool = False) -> None:
        super().__init__(model, dtype)
        self._head, self._careful = head, careful
        # A core wants blocks that stay in its cache, which is the path's own choice; a GPU wants a few large ones.
        on_cpu, vocabulary = head.weight_VD.device.type == "cpu", int(head.weight_VD.shape[0])
        if dtype == torch.float32 and takes_kernel(head.weight_VD.detach()):
            self.most_consecutive = _MOST_CONSECUTIVE
        self._blocks: dict[str, Any] = {"block_tokens": None if on_cpu else max(1, _GPU_BLOCK // vocabulary)}

    def chunks(self, states: Sequence[Tensor], layout: Layout) -> Iterator[Chunk]:
        """The head's products at the prediction positions alone."""
        most = max(1, CHUNK.get(self.model.device.type, LOGITS) // self.model.vocabulary_size)
        h_ND = [layout.predicting(state) for state in states]
        for tokens in blocks(len(layout.targets_N), most):
            with full_precision_products():
                yield Chunk(layout.targets_N[tokens], [self._logits(each[tokens]) for each in h_ND])

    @cached_property
    def _wide_head(self) -> AffineHead:
        weight_VD, bias_V = self._head
        return AffineHead(weight_VD.to(self.dtype), None if bias_V is None else bias_V.to(self.dtype))

    def _logits(self, h_nD: Tensor) -> Tensor:
        weight_VD, bias_V = self._head
        on_tensor_cores = weight_VD.is_cuda and self.dtype == torch.float32 and hasattr(torch.ops.aten.mm, "dtype")
        if not on_tensor_cores or weight_VD.dtype not in _HALF or h_nD.dtype != weight_VD.dtype:
            return linear(h_nD.to(self.dtype), *self._wide_head)
        # Products of 16-bit numbers are exact in float32: tensor cores multiply them as they are.
        z_nV = torch.mm(h_nD, weight_VD.T, out_dtype=self.dtype)
        return z_nV if bias_V is None else z_nV.add_(bias_V)

    def paths(self, updates: Sequence[Update], settings: MeasureConfig, before: Reading | None) -> list[UpdatePaths]:
        """From one survey of all the updates: everything but scales of the questions' own."""
        layout, quick = updates[0].layout, settings.level is Level.QUICK
        # φ at how many even scales, and the scales of derivatives; token rows hold the gain of a quarter step besides.
        points, nodes = (len(CURVATURE_SCALES) if settings.tokens else 2, (0.0,)) if quick else _GRID_SURVEY
        states = [updates[0].before_RSD, *(update.after_RSD for update in updates)]
        paths = [self._tokens(*ends, layout) for ends in pairwise([layout.predicting(state) for state in states])]
        found = []
        for path, survey in zip(paths, surveys(paths, points, nodes, 2), strict=True):
            tokens = RememberedPath(path, survey.initial)
            tokens.know([index / (points - 1) for index in range(points)], survey.gains.unsqueeze(0))
            tokens.know(nodes, survey.derivatives)
            before, after = (
                Reading.of(log_p, layout) for log_p in (survey.initial, survey.initial + survey.gains[:, -1])
            )
            ends = survey.distributions
            change = (ordered_mean(each, layout.tokens_R) for each in (ends.divergence, ends.entropy_change))
            outputs = OutputChange(*change)
            mean = MeanPath(tokens, partial(ordered_mean, lengths=layout.tokens_R), layout.sequence_N, before.scores_R)
            found.append(UpdatePaths(tokens, _joint(mean, layout), before, after, outputs))
        return found

    def read_rounded(self, update: Update, scales_B: tuple[Tensor, Tensor]) -> tuple[Reading, Reading]:
        """From the prediction positions alone."""
        layout = update.layout
        h_ND, h_plus_ND = (layout.predicting(state) for state in (update.before_RSD, update.after_RSD))
        question_N = layout.question_R[layout.sequence_N]
        first, second = (interpolated(h_ND, h_plus_ND, scale_B[question_N, None]) for scale_B in scales_B)
        found = self._tokens(first, second, layout).survey(2, [], 0)  # both in one pass over the head
        return Reading.of(found.initial, layout), Reading.of(found.initial + found.gains[:, -1], layout)

    def fp64_path(self, update: Update) -> UtilityPath:
        """The affine path with its logits kept: roots ask for them again and again."""
        head, layout = self._head, update.layout
        weight_DV = head.weight_VD.double().T
        h_ND, h_plus_ND = (layout.predicting(state).double() for state in (update.before_RSD, update.after_RSD))
        z0_NV = h_ND @ weight_DV
        if head.bias_V is not None:
            z0_NV += head.bias_V.double()
        v_NV = (h_plus_ND - h_ND) @ weight_DV
        path = affine_path(z0_NV, v_NV, layout.targets_N, examples=layout.sequence_N, **self._blocks)
        self._used.append(path.backends_used)
        return _joint(path, layout)

    def _tokens(self, h_ND: Tensor, h_plus_ND: Tensor, layout: Layout) -> AffinePath:
        """φ of every reference token by itself."""
        head = self._head
        choices: dict[str, Any] = {"dtype": self.dtype, "check": self._careful, **self._blocks}
        path = affine_path_from_states(
            h_ND, h_plus_ND, head.weight_VD, head.bias_V, layout.targets_N, **choices
        ).per_token()
        self._used.append(path.backends_used)
        return path


def readout_of(model: LoopedModel, dtype: torch.dtype, *, careful: bool = False) -> Readout:
    """The readout of a model in `dtype`; if `careful`, it waits for the device and repeats what kernels give up."""
    head = model.head
    return GeneralReadout(model, dtype) if head is None else AffineReadout(model, head, dtype, careful=careful)


def _joint(sequences: UtilityPath, layout: Layout) -> UtilityPath:
    """φ of every question: the sequence's own for a reference solution, joint over options otherwise."""
    return sequences if layout.options is None else OptionPath(sequences, layout.options)
