"""A path of reference utility φ(α) = U(H + αD) − U(H) and its derivatives (Eq. utility-path), whatever produced it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from loopscope.errors import LoopscopeError
from loopscope.readout.checks import Scales, as_order, as_scales


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

    def __len__(self) -> int:
        return int(self.stack.shape[0])


class UtilityPath(ABC):
    """φ(α) and its derivatives for one example, or for many at once.

    All results are float64 tensors on the readout's device. With a token-to-example index they carry a
    leading example axis; without one, and for a single scale, that axis is absent. Scales lie in [0, 1],
    the segment from H to H⁺; `extrapolate=True` admits others.
    """

    max_order: int

    @property
    @abstractmethod
    def examples(self) -> int:
        """How many examples this path holds."""

    @property
    @abstractmethod
    def single(self) -> bool:
        """Whether results drop the example axis."""

    @abstractmethod
    def at_scales(self, scales: list[float], order: int) -> Tensor:
        """φ, φ', … up to `order` of every example at the same K scales, float64 [order+1, N, K].

        Unlike `derivatives` it checks nothing and always keeps the example axis.
        """

    @abstractmethod
    def at_own(self, scales_N: Tensor, order: int) -> Tensor:
        """φ, φ', … up to `order` of each example at a scale of its own, float64 [order+1, N].

        Unlike `at` it checks nothing and always keeps the example axis.
        """

    @abstractmethod
    def _initial(self) -> Tensor:
        """U(H) of each example: float64 [N]."""

    def derivatives(self, alpha: Scales, order: int = 3, *, extrapolate: bool = False) -> Derivatives:
        """φ, φ', … up to the given order at one scale or several.

        Args:
            alpha: a scale, or several, in [0, 1].
            order: highest derivative, at most `max_order`.
            extrapolate: admit scales outside [0, 1].
        """
        order = as_order(order, self.max_order)
        scales, one = as_scales(alpha, extrapolate=extrapolate)
        stack = self.at_scales(scales, order)
        if one:
            stack = stack[..., 0]
        if self.single:
            stack = stack[:, 0]
        at = torch.tensor(scales[0] if one else scales, dtype=torch.float64, device=stack.device)
        return Derivatives(at, stack)

    def value(self, alpha: Scales, *, extrapolate: bool = False) -> Tensor:
        """φ(α) = U(H + αD) − U(H)."""
        return self.derivatives(alpha, 0, extrapolate=extrapolate).value

    def at(self, alpha: Scales, order: int = 0) -> Derivatives:
        """φ, φ', … of every example at a scale of its own: what a rule that chooses a scale per update needs.

        Args:
            alpha: one scale in [0, 1] for each example.
            order: highest derivative, at most `max_order`.
        """
        order = as_order(order, self.max_order)
        scales, one = as_scales(alpha, extrapolate=False)
        if len(scales) != self.examples:
            raise LoopscopeError(f"alpha holds {len(scales)} scales for {self.examples} examples; give one for each.")
        stack = self.at_own(torch.tensor(scales, dtype=torch.float64, device=self.initial_N.device), order)
        at = torch.tensor(scales[0] if one else scales, dtype=torch.float64, device=stack.device)
        return Derivatives(at, stack[:, 0] if self.single else stack)

    def utility(self, alpha: Scales, *, extrapolate: bool = False) -> Tensor:
        """U(H + αD) itself."""
        gain = self.value(alpha, extrapolate=extrapolate)
        start = self.initial_utility
        return gain + (start.unsqueeze(-1) if gain.ndim > start.ndim else start)

    @cached_property
    def _start(self) -> Tensor:
        return self.at_scales([0.0], 2)[..., 0]

    @cached_property
    def _full(self) -> Tensor:
        return self.at_scales([1.0], 0)[0, :, 0]

    @cached_property
    def initial_N(self) -> Tensor:  # noqa: N802 - its shape
        """U(H) of each example, float64 [N]: `initial_utility` with the example axis kept."""
        return self._initial()

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
    def quadratic(self) -> Tensor:
        """The same as `Q`."""
        return self.Q

    @property
    def gain(self) -> Tensor:
        """ΔU = φ(1), the gain of the full update."""
        return self._drop(self._full)
