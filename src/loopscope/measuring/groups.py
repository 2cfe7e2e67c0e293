"""Whole sequences of a batch in groups that fit, for readouts that look at all positions, and their logits.

Where a readout is a body and a head, the head reads a few tokens at a time, and it is the body's activations that must
fit; of any other readout the logits must. Rows are cut to the longest sequence of their group.

Shapes: N reference tokens of a batch, n of a group or chunk, R sequences, S positions, D hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.measuring.layout import Layout, groups_within
from loopscope.models.protocol import LoopedModel
from loopscope.models.walk import halves, read, readout_asks_context
from loopscope.readout.affine.sources import full_precision_products
from loopscope.readout.general.token_derivatives import logit_chunks
from loopscope.readout.softmax import log_probability

LOGITS = 1 << 25
"""Logits that exist at a time: a quarter of a gigabyte in float64."""
_STATES = {"cpu": 1 << 22, "cuda": 1 << 23}
"""Entries of the states that a body reads at a time; its activations hold some fifty times as many."""
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


class GroupedReadout:
    """A model's readout in a dtype, a group of sequences at a time."""

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
