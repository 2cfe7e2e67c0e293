"""Averages over the reference tokens of each example (Eq. reference-utility), in an order that never varies."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from loopscope.errors import LoopscopeError
from loopscope.readout.checks import as_index


@dataclass(frozen=True)
class Segments:
    """Which example each reference token belongs to.

    Attributes:
        index: example of each token, int64 [T].
        counts: tokens of each example, int64 [N], all positive.
        single: True where the caller gave no index, so that results drop the example axis.
        each: every token is an example of its own, in order.
        ends: one past each example's last token where the tokens of an example stand side by side and the examples
            in order; None otherwise. Kept on the host, so that nothing waits for the device to say it.
    """

    index: Tensor
    counts: Tensor
    single: bool
    each: bool = False
    ends: tuple[int, ...] | None = None

    @property
    def examples(self) -> int:
        """How many examples there are."""
        return int(self.counts.shape[0])

    def per_token(self) -> Segments:
        """Every token an example of its own."""
        index = torch.arange(self.index.shape[0], device=self.index.device)
        return Segments(index, torch.ones_like(index), single=False, each=True)


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
        if self._segments.each:
            self._sums[rows] += values
        elif self._segments.ends is not None:
            self._add_side_by_side(rows, values, self._segments.ends)
        else:
            present, local, lengths = torch.unique(self._segments.index[rows], return_inverse=True, return_counts=True)
            self._sums[present] += _sums(values[torch.argsort(local, stable=True)], lengths)

    def _add_side_by_side(self, rows: slice, values: Tensor, ends: tuple[int, ...]) -> None:
        assert self._sums is not None
        first, last = bisect_right(ends, rows.start), bisect_left(ends, rows.stop)
        cuts = [rows.start, *ends[first:last], rows.stop]
        lengths = torch.tensor([stop - start for start, stop in pairwise(cuts)])
        self._sums[first : last + 1] += _sums(values, lengths.to(values.device, non_blocking=True))

    def result(self) -> Tensor:
        """The means, [N, ...]."""
        assert self._sums is not None
        if self._segments.each:
            return self._sums
        counts = self._segments.counts.to(self._sums.dtype)
        return self._sums / counts.reshape(-1, *([1] * (self._sums.ndim - 1)))


def _sums(values: Tensor, lengths: Tensor) -> Tensor:
    """Sums of consecutive rows, `lengths` of them at a time, added up in order; the lengths are known to be right."""
    if values.numel() == 0:
        return values.new_zeros(lengths.shape[0], *values.shape[1:])
    flat = values.reshape(values.shape[0], -1).contiguous()
    summed = torch.segment_reduce(flat, "sum", lengths=lengths, axis=0, unsafe=True)
    return summed.reshape(-1, *values.shape[1:])


def segment_mean(segments: Segments, values: Tensor) -> Tensor:
    """Mean over each example's tokens: [T, ...] to [N, ...]."""
    if segments.each:
        return values
    mean = SegmentMean(segments)
    mean.add(slice(0, values.shape[0]), values)
    return mean.result()


def as_segments(examples: Any, tokens: int, device: torch.device) -> Segments:
    """Check a token-to-example index: integers 0..N-1, no example without a token."""
    if tokens == 0:
        raise LoopscopeError("the reference set is empty; give at least one reference token.")
    if examples is None:
        index = torch.zeros(tokens, dtype=torch.int64, device=device)
        counts = torch.full((1,), tokens, dtype=torch.int64, device=device)
        return Segments(index, counts, single=True, ends=(tokens,))
    index = as_index("examples", examples, tokens, device)
    if int(index.min()) < 0:
        raise LoopscopeError(f"examples holds {int(index.min())}; number the examples from 0.")
    counts = torch.bincount(index)
    empty = torch.nonzero(counts == 0)
    if empty.numel():
        raise LoopscopeError(
            f"example {int(empty[0])} has no reference tokens; drop it and number the others from 0 without gaps."
        )
    in_order = bool((index[1:] >= index[:-1]).all())
    return Segments(index, counts, single=False, ends=tuple(accumulate(counts.tolist())) if in_order else None)
