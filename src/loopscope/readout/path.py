"""A path of reference utility φ(α) = U(H + αD) − U(H) and its derivatives (Eq. utility-path), whatever produced it.

U is the mean over the reference tokens of an example (Eq. reference-utility), added up in an order that never varies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from loopscope.errors import LoopscopeError
from loopscope.readout.checks import Scales, as_groups, as_order, as_scales


@dataclass(frozen=True)
class Segments:
    """Which example each reference token belongs to.

    Attributes:
        index: example of each token, int64 [T].
        counts: tokens of each example, int64 [N], all positive.
        single: True where the caller gave no index, so that results drop the example axis.
        each: every token is one example, in order.
        in_order: the tokens of an example are neighbours, and the examples in order.
    """

    index: Tensor
    counts: Tensor
    single: bool
    each: bool = False
    in_order: bool = False

    @property
    def examples(self) -> int:
        """How many examples there are."""
        return int(self.counts.shape[0])

    def per_token(self) -> Segments:
        """Every token as one example."""
        index = torch.arange(self.index.shape[0], device=self.index.device)
        return Segments(index, torch.ones_like(index), single=False, each=True, in_order=True)


def segment_mean(segments: Segments, values: Tensor) -> Tensor:
    """Mean over each example's tokens: [T, ...] to [N, ...].

    Rows of one example are added in token order whatever the device, so a repeated run gives the same bits.
    """
    if segments.each:
        return values
    counts = segments.counts
    if values.numel() == 0:
        return values.new_zeros(segments.examples, *values.shape[1:])
    rows = values if segments.in_order else values[torch.argsort(segments.index, stable=True)]
    flat = rows.reshape(rows.shape[0], -1).contiguous()
    # The counts are right by construction; checking them would wait for the device.
    sums = torch.segment_reduce(flat, "sum", lengths=counts, axis=0, unsafe=True).reshape(-1, *values.shape[1:])
    return sums / counts.to(sums.dtype).reshape(-1, *[1] * (sums.ndim - 1))


def as_segments(examples: Any, tokens: int, device: torch.device) -> Segments:
    """Check a token-to-example index: integers 0..N-1, no example without a token."""
    if tokens == 0:
        raise LoopscopeError("the reference set is empty; give at least one reference token.")
    if examples is None:
        index = torch.zeros(tokens, dtype=torch.int64, device=device)
        counts = torch.full((1,), tokens, dtype=torch.int64, device=device)
        return Segments(index, counts, single=True, in_order=True)
    index, counts = as_groups("examples", "example", "reference tokens", examples, tokens, device)
    in_order = bool((index[1:] >= index[:-1]).all())
    return Segments(index, counts, single=False, in_order=in_order)


@dataclass(frozen=True)
class Derivatives:
    """φ and its derivatives at some scales.

    Attributes:
        alpha: the scales, float64, [K] or a single number.
        stack: stack[k] is the k-th derivative of φ at those scales; stack[0] is φ itself, the gain over H.
            Each has shape [examples, K], without the axis of whatever was single.
    """

    alpha: Tensor
    stack: Tensor

    @property
    def order(self) -> int:
        """The highest derivative here."""
        return int(self.stack.shape[0]) - 1

    @property
    def value(self) -> Tensor:
        """φ(α), the gain over U(H)."""
        return self.stack[0]

    @property
    def first(self) -> Tensor:
        """φ'(α)."""
        return self.stack[1]

    @property
    def second(self) -> Tensor:
        """φ''(α)."""
        return self.stack[2]

    @property
    def third(self) -> Tensor:
        """φ'''(α)."""
        return self.stack[3]

    @property
    def fourth(self) -> Tensor:
        """φ''''(α)."""
        return self.stack[4]

    def __getitem__(self, order: int) -> Tensor:
        return self.stack[order]

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.stack)


class UtilityPath(ABC):
    """φ(α) and its derivatives for one example, or for many at once.

    All results are float64 tensors on the readout's device. With a token-to-example index they carry a
    leading example axis; without one, and for a single scale, that axis is absent. Scales lie in [0, 1],
    the segment from H to H⁺.

    Attributes:
        max_order: the highest derivative.
        examples: how many examples this path holds.
        single: whether results drop the example axis.
    """

    max_order = 4
    examples: int
    single = False

    @cached_property
    def initial_N(self) -> Tensor:  # noqa: N802 - its shape
        """U(H) of each example, float64 [N]: `initial_utility` with the example axis kept."""
        raise NotImplementedError  # a path has it from the beginning, or says here how it follows

    @abstractmethod
    def at_scales(self, scales: list[float], order: int) -> Tensor:
        """φ, φ', … up to `order` of every example at the same K scales, float64 [order+1, N, K].

        Unlike `derivatives` it checks nothing and always keeps the example axis.
        """

    @abstractmethod
    def at_own(self, scales_N: Tensor, order: int) -> Tensor:
        """φ, φ', … up to `order` of each example at its scale, float64 [order+1, N].

        Unlike `at` it checks nothing and always keeps the example axis.
        """

    def __repr__(self) -> str:
        several = "1 example" if self.examples == 1 else f"{self.examples} examples"
        return f"<{type(self).__name__} of {several}: .slope, .Q, .gain, .value(alpha), .derivatives(alpha)>"

    def derivatives(self, alpha: Scales, order: int = 3) -> Derivatives:
        """φ, φ', … up to the given order at one scale or several.

        Args:
            alpha: a scale, or several, in [0, 1].
            order: highest derivative, at most `max_order`.
        """
        order = as_order(order, self.max_order)
        scales, one = as_scales(alpha)
        stack = self.at_scales(scales, order)
        if one:
            stack = stack[..., 0]
        if self.single:
            stack = stack[:, 0]
        at = torch.tensor(scales[0] if one else scales, dtype=torch.float64).to(stack.device, non_blocking=True)
        return Derivatives(at, stack)

    def value(self, alpha: Scales) -> Tensor:
        """φ(α) = U(H + αD) − U(H)."""
        return self.derivatives(alpha, 0).value

    def at(self, alpha: Scales, order: int = 0) -> Derivatives:
        """φ, φ', … of every example at its scale: what a rule that chooses a scale per update needs.

        Args:
            alpha: one scale in [0, 1] for each example.
            order: highest derivative, at most `max_order`.
        """
        order = as_order(order, self.max_order)
        scales, one = as_scales(alpha)
        if len(scales) != self.examples:
            raise LoopscopeError(f"alpha holds {len(scales)} scales for {self.examples} examples; give one for each.")
        stack = self.at_own(torch.tensor(scales, dtype=torch.float64, device=self.device), order)
        at = torch.tensor(scales[0] if one else scales, dtype=torch.float64, device=stack.device)
        return Derivatives(at, stack[:, 0] if self.single else stack)

    def utility(self, alpha: Scales) -> Tensor:
        """U(H + αD) itself."""
        gain = self.value(alpha)
        start = self.initial_utility
        return gain + (start.unsqueeze(-1) if gain.ndim > start.ndim else start)

    @cached_property
    def _start(self) -> Tensor:
        return self.at_scales([0.0], 2)[..., 0]

    @cached_property
    def _full(self) -> Tensor:
        return self.at_scales([1.0], 0)[0, :, 0]

    @cached_property
    def device(self) -> torch.device:
        """Where results are."""
        return self.initial_N.device

    def _drop(self, per_example: Tensor) -> Tensor:
        return per_example[0] if self.single else per_example

    @property
    def initial_utility(self) -> Tensor:
        """U(H), the mean reference-token log probability at the current state."""
        return self._drop(self.initial_N)

    @property
    def slope(self) -> Tensor:
        """A = φ'(0) (Eq. directional-coefficients)."""
        return self._drop(self._start[1])

    @property
    def curvature(self) -> Tensor:
        """φ''(0) = 2Q."""
        return self._drop(self._start[2])

    @property
    def Q(self) -> Tensor:  # noqa: N802 - the paper's name
        """Q = φ''(0)/2, the coefficient of α² in the local quadratic model."""
        return 0.5 * self.curvature

    @property
    def gain(self) -> Tensor:
        """ΔU = φ(1), the gain of the full update."""
        return self._drop(self._full)
