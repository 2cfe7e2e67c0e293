"""Interval arithmetic on float64 tensors, rounded outward: whatever the exact result is, it lies between the two ends.

**Outward rounding.** IEEE 754 rounds +, −, ×, ÷ and √ to the nearest float64 number, so the exact result lies between
the two neighbours of the computed one; also where it is subnormal (gradual underflow), and where it overflows, since
infinity's neighbour is the largest number. Each end moves by one number (`torch.nextafter`). A sum that comes out as
zero is exactly zero, and a product with an exact zero is: these stay, so that an update that moves nothing is certified
to have changed nothing.

**Functions.** exp, expm1, log and log1p are assumed to be within `ULPS` units in the last place of the true value; the
libraries claim 1 (SLEEF, MKL, CUDA). One unit is at most 2⁻⁵² of the value, so an end moves by 2⁻⁵² · `ULPS` of itself,
by 2⁻¹⁰²¹ for results that a library may have flushed to zero, and by one number more for the rounding of these. All
four are increasing. expm1 0 = log1p 0 = log 1 = 0 are exact.

**What is not known.** NaN means that an end is not known (∞ − ∞, 0 · ∞); it becomes −∞ or +∞.

`require_arithmetic` checks on the device at hand that additions round to nearest and that subnormals are kept. The
tests hold the functions against Arb on both kinds of device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from loopscope.errors import LoopscopeError

UNIT = 2.0**-53
"""Half the distance from 1 to the next float64 number: the relative error of one rounding."""
SMALLEST = 2.0**-1074
"""The smallest positive float64 number: twice the absolute error of one rounding that underflows."""
ULPS = 4.0
"""Units in the last place by which exp, expm1, log and log1p may be off."""
_FLUSHED = 2.0**-1021
"""What they may lose besides where results are subnormal, which a library may round to zero."""


@dataclass(frozen=True)
class Interval:
    """Numbers known to lie in [low, high]; both ends are tensors of one shape."""

    low: Tensor
    high: Tensor

    @classmethod
    def point(cls, value: Tensor) -> Interval:
        """Exactly known numbers."""
        return cls(value, value)

    @classmethod
    def around(cls, centre: Interval | Tensor, radius: Tensor) -> Interval:
        """Centre ± radius."""
        return cls(-radius, radius) + centre

    @property
    def magnitude(self) -> Tensor:
        """The largest absolute value."""
        return torch.maximum(self.low.abs(), self.high.abs())

    @property
    def mignitude(self) -> Tensor:
        """The smallest absolute value."""
        return torch.maximum(self.low, -self.high).clamp(min=0.0)

    def each(self, function: Callable[[Tensor], Tensor]) -> Interval:
        """The same done to both ends: a choice of entries, or a function that never falls and rounds nothing."""
        return Interval(function(self.low), function(self.high))

    def __getitem__(self, index: Any) -> Interval:
        return self.each(lambda end: end[index])

    def __neg__(self) -> Interval:
        return Interval(-self.high, -self.low)

    def _of(self, number: Interval | Tensor | float) -> Interval:
        """Another interval, or the one that holds tensors or a number exactly."""
        if isinstance(number, Interval):
            return number
        return Interval.point(number if isinstance(number, Tensor) else torch.full_like(self.low, number))

    def __add__(self, number: Interval | Tensor | float) -> Interval:
        other = self._of(number)
        return _known(_outward_sum(self.low + other.low, down), _outward_sum(self.high + other.high, up))

    def __sub__(self, number: Interval | Tensor | float) -> Interval:
        return self + (-number)

    def __rsub__(self, number: Tensor | float) -> Interval:
        return -self + number

    def __mul__(self, number: Interval | Tensor | float) -> Interval:
        other = self._of(number)
        products = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        return _known(*_hull(products, self._is_zero() | other._is_zero()))

    __radd__, __rmul__ = __add__, __mul__

    def __rtruediv__(self, number: Tensor | float) -> Interval:
        return self._of(number) / self

    def __truediv__(self, number: Interval | Tensor | float) -> Interval:
        other = self._of(number)
        quotients = [a / b for a in (self.low, self.high) for b in (other.low, other.high)]
        found = _known(*_hull(quotients, self._is_zero()))
        divides = (other.low > 0) | (other.high < 0)
        return Interval(torch.where(divides, found.low, -torch.inf), torch.where(divides, found.high, torch.inf))

    def square(self) -> Interval:
        """Its square."""
        low, high = self.mignitude, self.magnitude
        return Interval(torch.where(low > 0, down(low * low), 0.0), torch.where(high > 0, up(high * high), 0.0))

    def sqrt(self) -> Interval:
        """Its square root, of what is not negative."""
        low, high = self.low.clamp(min=0.0), self.high.clamp(min=0.0)
        return Interval(down(low.sqrt()).clamp(min=0.0), torch.where(high > 0, up(high.sqrt()), 0.0))

    def exp(self) -> Interval:
        """e^x."""
        return self._increasing(torch.exp, torch.nan).clamp(0.0)

    def expm1(self) -> Interval:
        """e^x − 1."""
        return self._increasing(torch.expm1, 0.0)

    def log(self) -> Interval:
        """Log x, of what is not negative."""
        return self.clamp(0.0)._increasing(torch.log, 1.0)

    def log1p(self) -> Interval:
        """log(1 + x), of what is not below −1."""
        return self.clamp(-1.0)._increasing(torch.log1p, 0.0)

    def clamp(self, min: float, max: float | None = None) -> Interval:
        """The same of numbers known to be at least `min`, and at most `max`."""
        return self.each(lambda end: end.clamp(min, max))

    def minimum(self, most: Tensor) -> Interval:
        """The same of numbers known to be at most `most`."""
        return self.each(lambda end: torch.minimum(end, most))

    def meet(self, other: Interval) -> Interval:
        """What lies in both."""
        return Interval(torch.maximum(self.low, other.low), torch.minimum(self.high, other.high))

    def where(self, condition: Tensor, other: Interval) -> Interval:
        """This one where the condition holds, the other elsewhere."""
        low, high = torch.where(condition, self.low, other.low), torch.where(condition, self.high, other.high)
        return Interval(low, high)

    def unsqueeze(self, axis: int) -> Interval:
        """With one axis more."""
        return self.each(lambda end: end.unsqueeze(axis))

    def _is_zero(self) -> Tensor:
        return (self.low == 0) & (self.high == 0)

    def _increasing(self, function: Callable[[Tensor], Tensor], root: float) -> Interval:
        """The values at the ends, moved outward; at its root (NaN: it has none) a function is exactly zero."""
        low, high = function(self.low), function(self.high)
        slack_low, slack_high = (end.abs() * (ULPS * 2.0**-52) + _FLUSHED for end in (low, high))
        exact_low, exact_high = self.low == root, self.high == root
        found_low = torch.where(exact_low, 0.0, down(low - slack_low))
        return _known(found_low, torch.where(exact_high, 0.0, up(high + slack_high)))


def down(x: Tensor) -> Tensor:
    """The next number below."""
    return torch.nextafter(x, torch.full_like(x, -torch.inf))


def up(x: Tensor) -> Tensor:
    """The next number above."""
    return torch.nextafter(x, torch.full_like(x, torch.inf))


def gamma(roundings: int) -> float:
    """γ_n = nu/(1 − nu), rounded up: n roundings in a row multiply by 1 + θ with |θ| ≤ γ_n (n below 2⁵⁰)."""
    return roundings * UNIT * (1.0 + roundings * 2.0**-51) * (1.0 + 2.0**-50)


def total(parts: Interval, axis: int) -> Interval:
    """Σ along an axis, in whatever order: the sum of n ends is off by at most γ_n times that of their magnitudes."""
    bound = gamma(parts.low.shape[axis] + 1)
    low, high = parts.low.sum(axis), parts.high.sum(axis)
    slack_low, slack_high = parts.low.abs().sum(axis) * bound, parts.high.abs().sum(axis) * bound
    return _known(_outward_sum(low - slack_low, down), _outward_sum(high + slack_high, up))


def mean_of_segments(parts: Interval, counts: Tensor) -> Interval:
    """Means over consecutive segments of the first axis, of these lengths; bounded as in `total`."""
    lengths = counts.to(parts.low).reshape(-1, *[1] * (parts.low.dim() - 1))
    bound = lengths * (UNIT * (1.0 + 2.0**-20)) + 2 * UNIT
    sums = [_segment_sums(values, counts) for values in (parts.low, parts.low.abs(), parts.high, parts.high.abs())]
    low = _outward_sum(sums[0] - sums[1] * bound, down)
    high = _outward_sum(sums[2] + sums[3] * bound, up)
    return _known(low, high) / Interval.point(lengths)


def _segment_sums(values: Tensor, counts: Tensor) -> Tensor:
    flat = values.reshape(values.shape[0], -1).contiguous()
    # The lengths are not checked, they are right by construction: it would wait for the device.
    found = torch.segment_reduce(flat, "sum", lengths=counts, axis=0, unsafe=True)
    return found.reshape(-1, *values.shape[1:])


def _outward_sum(x: Tensor, outward: Callable[[Tensor], Tensor]) -> Tensor:
    return torch.where(x == 0, x, outward(x))


def _hull(found: list[Tensor], exactly_zero: Tensor) -> tuple[Tensor, Tensor]:
    low, high = torch.minimum(*found[:2]), torch.maximum(*found[:2])
    for more in found[2:]:
        low, high = torch.minimum(low, more), torch.maximum(high, more)
    return torch.where(exactly_zero, 0.0, down(low)), torch.where(exactly_zero, 0.0, up(high))


def _known(low: Tensor, high: Tensor) -> Interval:
    return Interval(torch.where(low.isnan(), -torch.inf, low), torch.where(high.isnan(), torch.inf, high))


@cache
def require_arithmetic(device: str) -> None:
    """Refuse an arithmetic on which nothing here can rely: another rounding mode, or subnormals taken as zero."""
    one, half = (torch.tensor(x, dtype=torch.float64, device=device) for x in (1.0, UNIT))
    to_nearest = [float(one + half), float(one + 1.5 * half), float(-one - half)] == [1.0, 1.0 + 2 * UNIT, -1.0]
    # As bits: where subnormals are dropped, a comparison drops them, too.
    small = torch.stack([one * SMALLEST, (one * 2.0**-600) * 2.0**-450])
    keeps = small.view(torch.int64).tolist() == [1, 1 << (1074 - 1050)]
    if not (to_nearest and keeps):
        raise LoopscopeError(
            f"float64 on {device} does not round to nearest or drops subnormals: no certificates there"
            " (torch.set_flush_denormal(False) keeps them)"
        )
