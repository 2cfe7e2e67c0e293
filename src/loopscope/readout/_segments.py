"""Averages over the reference tokens of each example (Eq. reference-utility), in an order that never varies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from loopscope._errors import LoopscopeError
from loopscope.readout._checks import as_index


@dataclass(frozen=True)
class Segments:
    """Which example each reference token belongs to.

    Attributes:
        index: example of each token, int64 [T].
        counts: tokens of each example, int64 [N], all positive.
        single: True where the caller gave no index, so that results drop the example axis.
    """

    index: Tensor
    counts: Tensor
    single: bool

    @property
    def examples(self) -> int:
        """How many examples there are."""
        return int(self.counts.shape[0])

    def per_token(self) -> Segments:
        """Every token an example of its own."""
        index = torch.arange(self.index.shape[0], device=self.index.device)
        return Segments(index, torch.ones_like(index), single=False)


class SegmentMean:
    """The mean of each example's token rows, fed a block of tokens at a time.

    Rows of one example are added in token order whatever the device, so a repeated run gives the same bits.
    """

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._sums: Tensor | None = None

    def add(self, rows: slice, values: Tensor) -> None:
        """Add the tokens `rows`, values [t, ...]."""
        if self._sums is None:
            self._sums = values.new_zeros(self._segments.examples, *values.shape[1:])
        present, local, lengths = torch.unique(self._segments.index[rows], return_inverse=True, return_counts=True)
        flat = values.reshape(values.shape[0], -1)[torch.argsort(local, stable=True)]
        summed = torch.segment_reduce(flat.contiguous(), "sum", lengths=lengths, axis=0)
        self._sums[present] += summed.reshape(-1, *values.shape[1:])

    def result(self) -> Tensor:
        """The means, [N, ...]."""
        assert self._sums is not None
        counts = self._segments.counts.to(self._sums.dtype)
        return self._sums / counts.reshape(-1, *([1] * (self._sums.ndim - 1)))


def segment_mean(segments: Segments, values: Tensor) -> Tensor:
    """Mean over each example's tokens: [T, ...] to [N, ...]."""
    mean = SegmentMean(segments)
    mean.add(slice(0, values.shape[0]), values)
    return mean.result()


def as_segments(examples: Any, tokens: int, device: torch.device) -> Segments:
    """Check a token-to-example index: integers 0..N-1, no example without a token."""
    if tokens == 0:
        raise LoopscopeError("the reference set is empty; give at least one reference token.")
    if examples is None:
        index = torch.zeros(tokens, dtype=torch.int64, device=device)
        return Segments(index, torch.full((1,), tokens, dtype=torch.int64, device=device), single=True)
    index = as_index("examples", examples, tokens, device)
    if int(index.min()) < 0:
        raise LoopscopeError(f"examples holds {int(index.min())}; number the examples from 0.")
    counts = torch.bincount(index)
    empty = torch.nonzero(counts == 0)
    if empty.numel():
        raise LoopscopeError(
            f"example {int(empty[0])} has no reference tokens; drop it and number the others from 0 without gaps."
        )
    return Segments(index, counts, single=False)
