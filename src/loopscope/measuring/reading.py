"""What a state says about the references (Appendix "Task Utilities"), and the two kinds of readout that tell it.

    solution:  U = mean_j log p(y_j)
    options:   U = s_k* − log Σ_k exp s_k,   s_k = mean_j log p(y_j^(k))

The readout runs in its own dtype; log-softmax and everything after it in float64. Whether a model's readout is affine
is decided once, by `readout_of`. Nothing here waits for the device, unless `careful`: then tokens that the kernels give
up are read another way, which is only known when they have run. Otherwise such a token is NaN, and the batch is
measured again, carefully.

Shapes: N reference tokens, R sequences, B questions, S positions, D hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from loopscope.kernels.choice import takes_kernel
from loopscope.measuring.groups import GroupedReadout
from loopscope.measuring.interpolated_grid import interpolated_grid
from loopscope.measuring.layout import Layout
from loopscope.measuring.settings import Settings
from loopscope.measuring.update import OutputChange, Scales, Update, UpdatePaths, interpolated, predicting
from loopscope.models.protocol import AffineHead, LoopedModel
from loopscope.readout.affine.even import Survey
from loopscope.readout.affine.in_a_row import surveys
from loopscope.readout.affine.make import affine_path, affine_path_from_states
from loopscope.readout.affine.path import AffinePath
from loopscope.readout.affine.reference import log_probability_at_start
from loopscope.readout.composed import JoinedPath, MeanPath, RememberedPath
from loopscope.readout.general.nested import Derivation
from loopscope.readout.general.path import nonlinear_path_from_states
from loopscope.readout.options import OptionPath
from loopscope.readout.path import UtilityPath
from loopscope.readout.softmax import Softmax, SoftmaxChange
from loopscope.store.schema import Level

_GPU_BLOCK = 1 << 24
"""Logits of a block on a GPU: 128 MiB in float64."""
_MOST_TOGETHER = 7
"""Updates that follow one another and are surveyed together: one more state of a batch is alive then."""
GENERAL = "general"
"""What `ways_taken` calls Taylor mode through a readout that is not affine; nested forward mode is "nested" there."""
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
        """From the log probabilities, wherever they were read."""
        sums_R = layout.sequence_sum(log_p_N)
        scores_R = utility_B = sums_R / layout.tokens_R
        if layout.options is not None:
            options = layout.options
            utility_B = log_probability_at_start(options.gathered(scores_R, -torch.inf), options.target)
        return cls(log_p_N, sums_R, scores_R, utility_B)


class Ends(NamedTuple):
    """What an update's two ends say.

    Attributes:
        before: the reading of H.
        after: the reading of H⁺.
        outputs: how the outputs differ; None where nobody asks.
    """

    before: Reading
    after: Reading
    outputs: OutputChange | None


class Surveyed(NamedTuple):
    """An update under an affine head: the path of every reference token, and what one survey told of it."""

    path: AffinePath
    survey: Survey


class GeneralReadout(GroupedReadout):
    """Any readout: all positions of a sequence may matter, and φ is evaluated where it is asked for."""

    is_affine = False
    """Whether logits are affine in the state, so that the survey of an update tells the readings of both ends."""

    def __init__(self, model: LoopedModel, dtype: torch.dtype) -> None:
        super().__init__(model, dtype)
        self._derivation = _derivation_of(model)
        self._ways: list[set[str]] = []

    @property
    def ways_taken(self) -> set[str]:
        """How φ was computed so far: names of `readout.affine.choose.WAYS`, `GENERAL` or "nested"."""
        found = set().union(*self._ways)
        return {"nested" if name == GENERAL and self._derivation.impl == "nested" else name for name in found}

    @property
    def notes(self) -> set[str]:
        """What there is to say about the ways that were taken, one line each."""
        return {self._derivation.note} - {""}

    def read(self, state_RSD: Tensor, layout: Layout) -> Reading:
        """Log probabilities and U of every question at a state."""
        found = [chunk.log_probabilities(0) for chunk in self.chunks([state_RSD], layout)]
        return Reading.of(torch.cat(found), layout)

    def read_steps(self, update: Update, scales_B: Sequence[Tensor]) -> list[Reading]:
        """Readings of H + αD, with D in the readout's dtype, at some scales of each question."""
        start, rows = update.before_RSD.to(self.dtype), update.layout.question_R
        moved = update.after_RSD.to(self.dtype) - start
        states = (start + scale_B[rows, None, None].to(start.dtype) * moved for scale_B in scales_B)
        return [self.read(state, update.layout) for state in states]

    def readings(self, layout: Layout) -> Readings:
        """A place for the readings of a trip."""
        return Readings(self, layout)

    def most_together(self, settings: Settings) -> int:
        """How many updates that follow one another are surveyed together."""
        return 1

    def surveys(self, updates: Sequence[Update], settings: Settings) -> Sequence[Surveyed | None]:
        """What is found out about updates that follow one another before each is looked at by itself."""
        return [None] * len(updates)

    def paths(
        self, update: Update, settings: Settings, before: Reading | None, found: Surveyed | None = None
    ) -> UpdatePaths:
        """φ of every reference token and question; `before` is the reading of H where there is one."""
        layout, quick = update.layout, settings.level is Level.QUICK
        before, after, outputs = self._ends(update, before, outputs=not quick)
        sequences = self.sequences(update, self.dtype)
        if settings.interpolate and not quick:
            tokens, own, interpolation = interpolated_grid(update, sequences, before, after)
        else:
            tokens, own, interpolation = RememberedPath(sequences.per_token(), before.log_p_N), sequences, None
        if quick:
            tokens.know([1.0], (after.log_p_N - before.log_p_N).reshape(1, -1, 1))
        mean = MeanPath(tokens, layout.sequence_mean, layout.sequence_N, before.scores_R, own)
        return UpdatePaths(tokens, _joint(mean, layout), before, after, outputs, interpolation)

    def read_rounded(self, update: Update, scales_B: tuple[Tensor, Tensor]) -> tuple[Reading, Reading]:
        """Readings of the rounded interventions at two scales per question; padding keeps the proposed state."""
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
        self._ways.append({GENERAL})
        return JoinedPath(
            [
                nonlinear_path_from_states(
                    self.of_group(group, update.layout, dtype),
                    group.cut(update.before_RSD),
                    group.cut(update.after_RSD),
                    group.targets_n,
                    group.positions_n2,
                    examples=group.sequence_n,
                    dtype=dtype,
                    impl=self._derivation,
                )
                for group in self.groups(update.layout)
            ]
        )

    def _ends(self, update: Update, before: Reading | None, *, outputs: bool) -> Ends:
        """What H and H⁺ say; H is left out where it was read already and nobody asks how the outputs differ."""
        layout, changes = update.layout, []
        states = [update.after_RSD] if before is not None and not outputs else [update.before_RSD, update.after_RSD]
        log_p: list[list[Tensor]] = [[] for _ in states]
        for chunk in self.chunks(states, layout):
            for at, found in enumerate(log_p):
                found.append(chunk.log_probabilities(at))
            if outputs:
                change = SoftmaxChange(*(Softmax(z_nV.double()) for z_nV in chunk.logits))
                changes.append((change.divergence_n, change.entropy_n))
        *first, after = (Reading.of(torch.cat(found), layout) for found in log_p)
        if not outputs:
            return Ends(before or first[0], after, None)
        divergence_N, entropy_N = (torch.cat(found) for found in zip(*changes, strict=True))
        outputs_R = OutputChange(layout.sequence_mean(divergence_N), layout.sequence_mean(entropy_N))
        return Ends(before or first[0], after, outputs_R)


def _derivation_of(model: LoopedModel) -> Derivation:
    try:
        return _DERIVATIONS.setdefault(model, Derivation())
    except TypeError:  # an object that cannot be remembered finds out again
        return Derivation()


class AffineReadout(GeneralReadout):
    """An affine head: only the states at the prediction positions matter, [N, D].

    One survey of the reference tokens tells everything that a level asks for at common scales: U(H), φ on the grid,
    derivatives, and how the output distributions differ.
    """

    is_affine = True

    def __init__(self, model: LoopedModel, head: AffineHead, dtype: torch.dtype, *, careful: bool = False) -> None:
        super().__init__(model, dtype)
        self._head, self._careful = head, careful
        # A core wants blocks that stay in its cache, which is the path's own choice; a GPU wants a few large ones.
        on_cpu, vocabulary = head.weight_VD.device.type == "cpu", int(head.weight_VD.shape[0])
        self._blocks: dict[str, Any] = {
            "block_tokens": None if on_cpu else max(1, _GPU_BLOCK // vocabulary),
            "block_vocabulary": None if on_cpu else vocabulary,
        }

    def readings(self, layout: Layout) -> Readings:
        """In pairs on a GPU; a core gains nothing from two states at a time."""
        return Readings(self, layout) if self.model.device.type == "cpu" else PairedReadings(self, layout)

    def read_two(self, first_ND: Tensor, second_ND: Tensor, layout: Layout) -> tuple[Reading, Reading]:
        """Two states at the prediction positions, for one pass over the head."""
        found = self._tokens(first_ND, second_ND, layout).survey(2, [], 0)
        return Reading.of(found.initial, layout), Reading.of(found.initial + found.gains[:, -1], layout)

    def most_together(self, settings: Settings) -> int:
        """A few where the fused kernels take them; one of level full, which does more with each."""
        if settings.level is Level.FULL or self.dtype != torch.float32:
            return 1
        return _MOST_TOGETHER if takes_kernel(self._head.weight_VD.detach()) else 1

    def surveys(self, updates: Sequence[Update], settings: Settings) -> Sequence[Surveyed]:
        """Everything but scales of the questions' own."""
        layout, scales = updates[0].layout, Scales.of(settings.level, tokens=settings.tokens)
        states = [updates[0].before_RSD, *(update.after_RSD for update in updates)]
        made = [predicting(state, layout) for state in states]
        every_scale = settings.sums_every_scale
        paths = [self._tokens(*ends, layout, every_scale=every_scale) for ends in pairwise(made)]
        found = surveys(paths, scales.points, scales.with_derivatives, 2)
        return [Surveyed(path, survey) for path, survey in zip(paths, found, strict=True)]

    def paths(
        self, update: Update, settings: Settings, before: Reading | None, found: Surveyed | None = None
    ) -> UpdatePaths:
        """From the survey of the update."""
        layout, scales = update.layout, Scales.of(settings.level, tokens=settings.tokens)
        path, survey = found or self.surveys([update], settings)[0]
        tokens = RememberedPath(path, survey.initial)
        tokens.know([index / (scales.points - 1) for index in range(scales.points)], survey.gains.unsqueeze(0))
        tokens.know(scales.with_derivatives, survey.derivatives)
        before = Reading.of(survey.initial, layout)
        ends = survey.distributions
        outputs = OutputChange(layout.sequence_mean(ends.divergence), layout.sequence_mean(ends.entropy_change))
        mean = MeanPath(tokens, layout.sequence_mean, layout.sequence_N, before.scores_R)
        return UpdatePaths(tokens, _joint(mean, layout), before, None, outputs)

    def read_rounded(self, update: Update, scales_B: tuple[Tensor, Tensor]) -> tuple[Reading, Reading]:
        """The same from the prediction positions alone."""
        layout, (h_ND, h_plus_ND) = update.layout, update.predicting()
        question_N = layout.question_R[layout.sequence_N]
        first, second = (interpolated(h_ND, h_plus_ND, scale_B[question_N, None]) for scale_B in scales_B)
        return self.read_two(first, second, layout)

    def fp64_path(self, update: Update) -> UtilityPath:
        """The affine path with its logits kept: roots ask for them again and again."""
        head, layout, (h_ND, h_plus_ND) = self._head, update.layout, update.predicting()
        weight_DV = head.weight_VD.double().T
        h_ND, h_plus_ND = h_ND.double(), h_plus_ND.double()
        z0_NV = h_ND @ weight_DV
        if head.bias_V is not None:
            z0_NV += head.bias_V.double()
        v_NV = (h_plus_ND - h_ND) @ weight_DV
        path = affine_path(z0_NV, v_NV, layout.targets_N, examples=layout.sequence_N, **self._blocks)
        self._ways.append(path.ways_taken)
        return _joint(path, layout)

    def _tokens(self, h_ND: Tensor, h_plus_ND: Tensor, layout: Layout, *, every_scale: bool = False) -> AffinePath:
        """φ of every reference token by itself."""
        path = affine_path_from_states(
            h_ND,
            h_plus_ND,
            self._head.weight_VD,
            self._head.bias_V,
            layout.targets_N,
            dtype=self.dtype,
            check=self._careful,
            every_scale=every_scale,
            **self._blocks,
        ).per_token()
        self._ways.append(path.ways_taken)
        return path


def readout_of(model: LoopedModel, dtype: torch.dtype, *, careful: bool = False) -> GeneralReadout:
    """The readout of a model in `dtype`; `careful` waits for the device and reads again what its kernels give up."""
    head = model.head
    return GeneralReadout(model, dtype) if head is None else AffineReadout(model, head, dtype, careful=careful)


def _joint(sequences: UtilityPath, layout: Layout) -> UtilityPath:
    """φ of every question: the sequence's own for a reference solution, joint over options otherwise."""
    return sequences if layout.options is None else OptionPath(sequences, layout.options)


class Readings:
    """Readings by depth, each made once: told by an update's survey, or read from the state."""

    def __init__(self, readout: GeneralReadout, layout: Layout) -> None:
        self._readout, self._layout = readout, layout
        self.found: dict[int, Reading] = {}

    def read(self, depth: int, state_RSD: Tensor) -> None:
        """Read a state, now or together with the next one."""
        self.found[depth] = self._readout.read(state_RSD, self._layout)

    def settle(self) -> None:
        """Read whatever is still waiting."""


class PairedReadings(Readings):
    """Depths that no update says anything about, two at a time: one pass over the head for both."""

    def __init__(self, readout: AffineReadout, layout: Layout) -> None:
        super().__init__(readout, layout)
        self._affine = readout
        self._waiting: tuple[int, Tensor] | None = None

    def read(self, depth: int, state_RSD: Tensor) -> None:
        """Keep the state until there is a second one."""
        new = depth, predicting(state_RSD, self._layout)
        waiting, self._waiting = self._waiting, new if self._waiting is None else None
        if waiting is not None:
            self._pair(waiting, new)

    def settle(self) -> None:
        """Read the last one by itself."""
        if self._waiting is not None:
            self._pair(self._waiting, self._waiting)
            self._waiting = None

    def _pair(self, one: tuple[int, Tensor], other: tuple[int, Tensor]) -> None:
        first, second = self._affine.read_two(one[1], other[1], self._layout)
        self.found[other[0]] = second
        self.found[one[0]] = first
