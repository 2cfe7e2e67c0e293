"""What is kept of a state so that its logits can be computed later, a chunk of reference tokens at a time.

    affine readout            the states at the prediction positions, [N, D]
    body and head             what the body makes of them, [N, D'], so that the body runs once per depth
    any other readout         the whole state, [R, S, D]; its chunks are whole sequences

Shapes: N reference tokens, n of a chunk, R sequences, S positions, D hidden width, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.measuring.groups import LOGITS, Group
from loopscope.measuring.layout import Layout
from loopscope.measuring.reading import GeneralReadout
from loopscope.measuring.update import predicting
from loopscope.models.layers.linear import linear
from loopscope.models.protocol import AffineHead, BodyAndHead
from loopscope.models.walk import halves, read
from loopscope.readout.affine.sources import blocks

_LOGITS = {"cpu": 1 << 20, "cuda": 1 << 26}
"""Logits of a chunk, where not `LOGITS`; some ten arrays of that size exist at a time."""


class Chunk(NamedTuple):
    """Some reference tokens of a batch and the map from what was kept of a state to their logits [n, V]."""

    tokens: slice
    logits: Callable[[Tensor], Tensor]


class KeptStates(ABC):
    """How states are kept, and the logits of what was kept."""

    def __init__(self, readout: GeneralReadout, layout: Layout) -> None:
        self._model, self._dtype, self._layout, self._readout = readout.model, readout.dtype, layout, readout
        # Tokens of a chunk.
        self._size = max(1, _LOGITS.get(readout.model.device.type, LOGITS) // readout.model.vocabulary_size)

    @abstractmethod
    def keep(self, state_RSD: Tensor) -> Tensor:
        """What the logits at the prediction positions follow from."""

    @abstractmethod
    def chunks(self) -> Iterator[Chunk]:
        """All reference tokens, in order."""


class _Positions(KeptStates):
    """An affine head reads every position by itself."""

    def __init__(self, readout: GeneralReadout, layout: Layout, head: AffineHead) -> None:
        super().__init__(readout, layout)
        self._head = head

    def keep(self, state_RSD: Tensor) -> Tensor:
        return predicting(state_RSD, self._layout)

    def chunks(self) -> Iterator[Chunk]:
        dtype, (weight_VD, bias_V) = self._dtype, self._head
        if not _tensor_cores_do(weight_VD, dtype):
            weight_VD = weight_VD.to(dtype)  # once for all chunks and depths
        bias_V = None if bias_V is None else bias_V.to(dtype)
        for tokens in blocks(len(self._layout.targets_N), self._size):
            yield Chunk(tokens, partial(_head_logits, weight_VD, bias_V, dtype, tokens))


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


class _AfterBody(KeptStates):
    """The body reads whole sequences, once; its head every position by itself."""

    def keep(self, state_RSD: Tensor) -> Tensor:
        groups = self._readout.groups(self._layout)
        return torch.cat([self._halves(group).body(state_RSD[group.rows], group.positions_n2) for group in groups])

    def chunks(self) -> Iterator[Chunk]:
        for group in self._readout.groups(self._layout):
            head, first = self._halves(group).head, group.tokens.start
            for inside in blocks(group.tokens.stop - first, self._size):
                tokens = slice(first + inside.start, first + inside.stop)
                yield Chunk(tokens, partial(_after_body, head, tokens))

    def _halves(self, group: Group) -> BodyAndHead:
        found = halves(self._model, self._dtype, self._layout.context_of(group.rows))
        assert found is not None, "a readout in halves stays one"
        return found


def _after_body(head: Callable[[Tensor], Tensor], tokens: slice, body_ND: Tensor) -> Tensor:
    return head(body_ND[tokens])


class _Whole(KeptStates):
    """A readout of which nothing else is known."""

    def keep(self, state_RSD: Tensor) -> Tensor:
        return state_RSD

    def chunks(self) -> Iterator[Chunk]:
        for group in self._readout.groups(self._layout, self._size):
            yield Chunk(group.tokens, partial(self._read, group))

    def _read(self, group: Group, state_RSD: Tensor) -> Tensor:
        context = self._layout.context_of(group.rows)
        return read(self._model, state_RSD[group.rows], group.positions_n2, self._dtype, context)


def kept_states(readout: GeneralReadout, layout: Layout) -> KeptStates:
    """The least that will do for a readout."""
    head = readout.model.head
    if head is not None:
        return _Positions(readout, layout, head)
    first = next(iter(readout.groups(layout)))
    in_halves = halves(readout.model, readout.dtype, layout.context_of(first.rows)) is not None
    return _AfterBody(readout, layout) if in_halves else _Whole(readout, layout)
