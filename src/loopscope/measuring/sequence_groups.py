"""A model's readout, a group of whole sequences at a time: as many as fit into memory.

Where a readout is a body and a head, the head reads a few tokens at a time, and it is the body's activations that must
fit; of any other readout the logits must. Rows are cut to the longest sequence of their group.

Shapes: N reference tokens of a batch, n of a group or chunk, R sequences, S positions, D hidden width, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.measuring.batching import Layout, groups_within
from loopscope.models.layers.linear import linear
from loopscope.models.protocol import BodyAndHead, LoopedModel
from loopscope.models.walk import halves, read, readout_asks_context
from loopscope.readout.affine.sources import blocks, full_precision_products
from loopscope.readout.general.token_derivatives import logit_chunks
from loopscope.readout.softmax import log_probability

LOGITS = 1 << 25
"""Logits that exist at a time: a quarter of a gigabyte in float64."""
_STATES = {"cpu": 1 << 22, "cuda": 1 << 23}
"""Entries of the states that a body reads at a time; its activations hold some fifty times as many."""
_CHUNK = {"cpu": 1 << 20, "cuda": 1 << 26}
"""Logits of a deferred chunk, where not `LOGITS`; some ten arrays of that size exist at a time."""
_COLUMNS = 16
"""Rows are cut to a multiple of this, as kernels like them."""


class Group(NamedTuple):
    """Whole sequences of a batch and their reference tokens.

    Attributes:
        rows: the sequences.
        tokens: their reference tokens.
        positions_n2: where those are predicted, rows counted from the group's first.
        sequence_n: the sequence of each, counted from the group's first.
        targets_n: the tokens themselves.
        width: positions of a row that are read; beyond it there is padding alone.
    """

    rows: slice
    tokens: slice
    positions_n2: Tensor
    sequence_n: Tensor
    targets_n: Tensor
    width: int

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


class SequenceReadout:
    """A model's readout in a dtype, which may look at all positions of a sequence."""

    def __init__(self, model: LoopedModel, dtype: torch.dtype) -> None:
        self.model, self.dtype = model, dtype

    def groups(self, layout: Layout, most: int | None = None) -> Iterator[Group]:
        """Whole sequences at a time: as many as fit, or with at most `most` reference tokens."""
        first, lengths = 0, layout.lengths
        for rows in self._fitting(layout, most):
            last = first + sum(layout.counts[rows.start : rows.stop])
            tokens = slice(first, last)
            row_n, place_n = layout.positions_N2[tokens].unbind(1)
            yield Group(
                slice(rows.start, rows.stop),
                tokens,
                torch.stack([row_n - rows.start, place_n], 1),
                layout.sequence_N[tokens] - rows.start,
                layout.targets_N[tokens],
                self.width(layout, max(lengths[rows.start : rows.stop])),
            )
            first = last

    def width(self, layout: Layout, longest: int) -> int:
        """How many positions of the batch's rows are read where no sequence has more than `longest`."""
        padded = int(layout.batch.input_ids.shape[1])
        return min(-(-longest // _COLUMNS) * _COLUMNS, padded) if self._is_headed else padded

    def _fitting(self, layout: Layout, most: int | None) -> Iterator[range]:
        if most is None and self._is_headed:
            entries = _STATES.get(self.model.device.type, _STATES["cpu"])
            return groups_within(layout.lengths, max(1, entries // self.model.hidden_size))
        return groups_within(layout.counts, most or max(1, LOGITS // self.model.vocabulary_size))

    @cached_property
    def _is_headed(self) -> bool:
        """Whether the readout is a body and a head that know nothing but the state."""
        return not readout_asks_context(self.model) and halves(self.model, self.dtype) is not None

    def of_group(self, group: Group, layout: Layout, dtype: torch.dtype) -> Callable[..., Tensor]:
        """From states of the group's rows to logits."""
        context = layout.context_of(group.rows)
        return halves(self.model, dtype, context) or (
            lambda state, positions: read(self.model, state, positions, dtype, context)
        )

    def chunks(self, states: Sequence[Tensor], layout: Layout) -> Iterator[Chunk]:
        """Logits at the prediction positions of some states, without TF32, a few tokens at a time."""
        for group in self.groups(layout):
            readout = self.of_group(group, layout, self.dtype)
            made = [logit_chunks(readout, group.cut(state), group.positions_n2, 1) for state in states]
            while True:
                with full_precision_products():
                    found = [chunk for chunks in made if (chunk := next(chunks, None)) is not None]
                if not found:
                    break
                yield Chunk(group.targets_n[found[0].rows], [chunk.logits for chunk in found])


class LogitChunk(NamedTuple):
    """Some reference tokens of a batch and the map from what was kept of a state to their logits [n, V]."""

    tokens: slice
    logits: Callable[[Tensor], Tensor]


class DeferredReadout(ABC):
    """What is kept of a state so that its logits can be computed later, a chunk of reference tokens at a time."""

    def __init__(self, readout: SequenceReadout, layout: Layout) -> None:
        self._readout, self._layout, model = readout, layout, readout.model
        self._tokens = max(1, _CHUNK.get(model.device.type, LOGITS) // model.vocabulary_size)

    @abstractmethod
    def keep(self, state_RSD: Tensor) -> Tensor:
        """What the logits at the prediction positions follow from."""

    @abstractmethod
    def chunks(self) -> Iterator[LogitChunk]:
        """All reference tokens, in order."""


class _PredictingStates(DeferredReadout):
    """Under an affine head the states at the prediction positions are kept, [N, D]."""

    def keep(self, state_RSD: Tensor) -> Tensor:
        row, place = self._layout.positions_N2.unbind(1)
        return state_RSD[row, place]

    def chunks(self) -> Iterator[LogitChunk]:
        head, dtype = self._readout.model.head, self._readout.dtype
        assert head is not None, "an affine head stays one"
        weight_VD, bias_V = head
        if not _tensor_cores_do(weight_VD, dtype):
            weight_VD = weight_VD.to(dtype)  # once for all chunks and depths
        bias_V = None if bias_V is None else bias_V.to(dtype)
        for tokens in blocks(len(self._layout.targets_N), self._tokens):
            yield LogitChunk(tokens, partial(_head_logits, weight_VD, bias_V, dtype, tokens))


def _tensor_cores_do(weight_VD: Tensor, dtype: torch.dtype) -> bool:
    """Whether 16-bit numbers, whose products are exact in float32, are multiplied as they are."""
    half = weight_VD.dtype in (torch.bfloat16, torch.float16)
    return weight_VD.is_cuda and half and dtype == torch.float32 and hasattr(torch.ops.aten.mm, "dtype")


def _head_logits(weight_VD: Tensor, bias_V: Tensor | None, dtype: torch.dtype, tokens: slice, h_ND: Tensor) -> Tensor:
    h_nD = h_ND[tokens]
    if h_nD.dtype != weight_VD.dtype or not _tensor_cores_do(weight_VD, dtype):
        return linear(h_nD.to(dtype), weight_VD.to(dtype), bias_V)
    z_nV = torch.mm(h_nD, weight_VD.T, out_dtype=dtype)
    return z_nV if bias_V is None else z_nV.add_(bias_V)


class _BodyOutputs(DeferredReadout):
    """Of a body and a head the body's outputs are kept, [N, D'], so that it runs once per depth."""

    def keep(self, state_RSD: Tensor) -> Tensor:
        groups = self._readout.groups(self._layout)
        return torch.cat([self._halves(group).body(state_RSD[group.rows], group.positions_n2) for group in groups])

    def chunks(self) -> Iterator[LogitChunk]:
        for group in self._readout.groups(self._layout):
            head, first = self._halves(group).head, group.tokens.start
            for inside in blocks(group.tokens.stop - first, self._tokens):
                tokens = slice(first + inside.start, first + inside.stop)
                yield LogitChunk(tokens, partial(_of_tokens, head, tokens))

    def _halves(self, group: Group) -> BodyAndHead:
        found = halves(self._readout.model, self._readout.dtype, self._layout.context_of(group.rows))
        assert found is not None, "a readout in halves stays one"
        return found


def _of_tokens(head: Callable[[Tensor], Tensor], tokens: slice, body_ND: Tensor) -> Tensor:
    return head(body_ND[tokens])


class _WholeStates(DeferredReadout):
    """Of a readout of which nothing else is known the whole state is kept, [R, S, D]."""

    def keep(self, state_RSD: Tensor) -> Tensor:
        return state_RSD

    def chunks(self) -> Iterator[LogitChunk]:
        for group in self._readout.groups(self._layout, self._tokens):
            yield LogitChunk(group.tokens, partial(self._read, group))

    def _read(self, group: Group, state_RSD: Tensor) -> Tensor:
        context = self._layout.context_of(group.rows)
        return read(self._readout.model, state_RSD[group.rows], group.positions_n2, self._readout.dtype, context)


def deferred_readout(readout: SequenceReadout, layout: Layout) -> DeferredReadout:
    """The one that keeps the least."""
    if readout.model.head is not None:
        return _PredictingStates(readout, layout)
    first = next(iter(readout.groups(layout)))
    in_halves = halves(readout.model, readout.dtype, layout.context_of(first.rows)) is not None
    return _BodyOutputs(readout, layout) if in_halves else _WholeStates(readout, layout)
