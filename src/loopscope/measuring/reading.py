"""Reference utilities of a state (Appendix "Task Utilities"): mean log probability, or joint over options.

    solution:  U = mean_j log p(y_j)
    options:   U = s_k* − log Σ_k exp s_k,   s_k = mean_j log p(y_j^(k))

The readout runs in its own dtype; log-softmax and everything after it in float64.

Shapes: N reference tokens, R sequences, B questions, S positions, D hidden width, V vocabulary.

Reference tokens through an affine head: only the states at their prediction positions matter, [N, D].

Nothing here waits for the device, unless `careful`: then tokens that the kernels give up are read another way, which is
only known when they have run. Otherwise such a token is NaN, and the batch is measured again, carefully.

Shapes: N reference tokens, R sequences, S positions, D hidden width.

U at the depths of a trip, each read once: as an update's survey says it, or by itself.

Shapes: N reference tokens, R sequences, S positions, D hidden width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.measuring.layout import Layout
from loopscope.models.protocol import AffineHead, LoopedModel
from loopscope.readout.affine.make import affine_path_from_states
from loopscope.readout.affine.path import AffinePath
from loopscope.readout.affine.reference import log_probability_at_start
from loopscope.readout.affine.sources import full_precision_products

LOGITS = 1 << 25
"""Logits that exist at a time: a quarter of a gigabyte in float64."""


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
        scores_R = sums_R / layout.tokens_R
        return cls(log_p_N, sums_R, scores_R, question_utility(scores_R, layout))


def read(model: LoopedModel, state_RSD: Tensor, layout: Layout, dtype: torch.dtype) -> Reading:
    """Log probabilities and U of every question at a state, through any readout."""
    return Reading.of(log_probabilities(model, state_RSD, layout, dtype), layout)


def question_utility(scores_R: Tensor, layout: Layout) -> Tensor:
    """U from the sequences' scores, [R] → [B]."""
    if layout.options is None:
        return scores_R
    return log_probability_at_start(layout.options.gathered(scores_R, -torch.inf), layout.options.target)


def log_probabilities(model: LoopedModel, state_RSD: Tensor, layout: Layout, dtype: torch.dtype) -> Tensor:
    """Log p of every reference token, float64 [N]."""
    found = []
    for piece in pieces(model, layout):
        z_nV = logits(model, state_RSD, layout, piece, dtype)
        target_n = z_nV.gather(1, layout.targets_N[piece.tokens, None])[:, 0]
        found.append(target_n - torch.logsumexp(z_nV, dim=1))
    return torch.cat(found)


class Piece(NamedTuple):
    """Whole sequences of a batch and their reference tokens."""

    rows: slice
    tokens: slice


def logits(model: LoopedModel, state_RSD: Tensor, layout: Layout, piece: Piece, dtype: torch.dtype) -> Tensor:
    """Logits at the prediction positions of a piece, read out in `dtype` without TF32, as float64 [n, V]."""
    with full_precision_products():
        return model.readout(state_RSD[piece.rows], local_positions(layout, piece), dtype).double()


def local_positions(layout: Layout, piece: Piece) -> Tensor:
    """The prediction positions of a piece, rows counted from its first."""
    row, place = layout.positions_N2[piece.tokens].unbind(1)
    return torch.stack([row - piece.rows.start, place], 1)


def pieces(model: LoopedModel, layout: Layout) -> Iterator[Piece]:
    """Whole sequences with their reference tokens, so many at a time that their logits fit."""
    most = max(1, LOGITS // model.vocabulary_size)
    first_row = first_token = tokens = 0
    for row, count in enumerate(layout.counts):
        if tokens and tokens + count > most:
            yield Piece(slice(first_row, row), slice(first_token, first_token + tokens))
            first_row, first_token, tokens = row, first_token + tokens, 0
        tokens += count
    yield Piece(slice(first_row, len(layout.counts)), slice(first_token, first_token + tokens))


_GPU_BLOCK = 1 << 24
"""Logits of a block on a GPU: 128 MiB in float64."""


def predicting(state_RSD: Tensor, layout: Layout) -> Tensor:
    """The states whose logits predict the reference tokens, [N, D]."""
    row, place = layout.positions_N2.unbind(1)
    return state_RSD[row, place]


class Reader(NamedTuple):
    """How an affine head is read.

    Attributes:
        head: the head.
        layout: whose reference tokens.
        dtype: arithmetic of the readout.
        careful: whether to wait for the device and read again what its kernels give up.
    """

    head: AffineHead
    layout: Layout
    dtype: torch.dtype
    careful: bool = False


def token_path(reader: Reader, h_ND: Tensor, h_plus_ND: Tensor) -> AffinePath:
    """φ of every reference token by itself."""
    head = reader.head
    size = block_size(head)
    path = affine_path_from_states(
        h_ND,
        h_plus_ND,
        head.weight_VD,
        head.bias_V,
        reader.layout.targets_N,
        dtype=reader.dtype,
        block_tokens=size.tokens,
        block_vocabulary=size.vocabulary,
        check=reader.careful,
    )
    return path.per_token()


class LogProbabilities(NamedTuple):
    """Log p of every reference token at two states, float64 [N] each."""

    first: Tensor
    second: Tensor


def read_two(reader: Reader, first_ND: Tensor, second_ND: Tensor) -> LogProbabilities:
    """Two states read at once: the head passes by once for both."""
    found = token_path(reader, first_ND, second_ND).survey(2, [], 0)
    return LogProbabilities(found.initial, found.initial + found.gains[:, -1])


class BlockSize(NamedTuple):
    """How much an affine path works on at a time; None leaves it to the path."""

    tokens: int | None
    vocabulary: int | None


def block_size(head: AffineHead) -> BlockSize:
    """A core wants blocks that stay in its cache, which is the path's own choice; a GPU wants a few large ones."""
    if head.weight_VD.device.type == "cpu":
        return BlockSize(None, None)
    vocabulary = int(head.weight_VD.shape[0])
    return BlockSize(max(1, _GPU_BLOCK // vocabulary), vocabulary)


class _Waiting(NamedTuple):
    depth: int
    state_ND: Tensor


class Readings:
    """Readings by depth, in the order in which they become known.

    With a `reader`, depths that no update says anything about are read two at a time: the head passes by once.
    """

    def __init__(self, model: LoopedModel, layout: Layout, dtype: torch.dtype, reader: Reader | None = None) -> None:
        self._model, self._layout, self._dtype, self._reader = model, layout, dtype, reader
        self._waiting: _Waiting | None = None
        self.found: dict[int, Reading] = {}

    def read(self, depth: int, state_RSD: Tensor) -> None:
        """Read a state, now or together with the next one."""
        if self._reader is None:
            self.found[depth] = read(self._model, state_RSD, self._layout, self._dtype)
            return
        new = _Waiting(depth, predicting(state_RSD, self._layout))
        if self._waiting is None:
            self._waiting = new
        else:
            self._pair(self._reader, self._waiting, new)
            self._waiting = None

    def settle(self) -> None:
        """Read whatever is still waiting."""
        if self._waiting is not None and self._reader is not None:
            self._pair(self._reader, self._waiting, self._waiting)
            self._waiting = None

    def _pair(self, reader: Reader, one: _Waiting, other: _Waiting) -> None:
        log_p = read_two(reader, one.state_ND, other.state_ND)
        self.found[other.depth] = Reading.of(log_p.second, self._layout)
        self.found[one.depth] = Reading.of(log_p.first, self._layout)
