r"""At which scales the kernels sum, and how φ at the grid's scales follows where they do so at fewer of them.

**Few scales.** A mass S(α) = Σ w⁰ e^{αv'} is a sum of exponentials, an entire function of α: unlike its logarithm it
has no singularity near [0, 1], and a polynomial that agrees with it in enough places agrees with it in between. Eleven
masses, at sixteenths of the step, and mean and variance at five of them, which a pass asks for anyway, are 21
conditions on a polynomial of degree 20 (Hermite interpolation). For an entry that falls or rises by e^{|v'|} along the
step it is off by less than |v'|²¹ Π|α − αᵢ| / 21!. Masses close to both ends keep what conditions weigh small, so that
rounding does not grow.

**Its error is measured for every token.** Without the masses at 3/8 and 5/8 the others foretell them. By how much they
are wrong there is more than the polynomial of all conditions is wrong anywhere (`test_nodes.py`). Tokens for which that
is more than `ALLOWED`, and than the rounding of their largest logits, are swept again, at every scale of the grid.

Shapes: C conditions, K scales of the grid.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from torch import Tensor

from loopscope.readout.affine.even import EvenScales
from loopscope.readout.affine.fused.sums import slots

ALLOWED, ROUNDING = 2.0**-19, 2.0**-23
"""The largest relative error of a mass that is left out: the first, and the second times the largest logit. Weights
carry the rounding of that logit in FP32, half of the second, whichever way they are summed."""


class Nodes(NamedTuple):
    """Scales k/cells whose masses are summed, and those among them with power sums."""

    cells: int
    masses: tuple[int, ...]
    places: tuple[int, ...]
    order: int
    stride: int  # how many scales weights go on at a time

    @staticmethod
    def every(even: EvenScales, order: int) -> Nodes:
        """All scales of a grid."""
        places = tuple(sorted(set(even.places))) if order else ()
        return Nodes(even.count - 1, tuple(range(even.count)), places, order, 2)

    @staticmethod
    def fewest(even: EvenScales, order: int) -> Nodes:
        """Few of them where the others follow: on grids that have the quarters, with derivatives there if anywhere."""
        cells = even.count - 1
        quarters = cells % 4 == 0 and all(4 * place % cells == 0 for place in even.places)
        return FEW if quarters and cells >= FEW.cells and order <= FEW.order else Nodes.every(even, order)

    @property
    def are_few(self) -> bool:
        """Whether masses at other scales follow from them."""
        return self == FEW

    def reported(self, even: EvenScales) -> tuple[int, ...]:
        """The places of the grid whose derivatives are known."""
        return tuple(place * (even.count - 1) // self.cells for place in self.places)

    def constants(self) -> dict[str, Any]:
        """As the kernels are told."""
        lower = [number for number, k in enumerate(self.masses) if k in self.places and 2 * k <= self.cells]
        upper = [number for number, k in enumerate(self.masses) if k in self.places and 2 * k > self.cells]
        return {
            "COUNT": self.cells + 1,
            "MASSES": sum(1 << k for k in self.masses),
            "MASS": len(self.masses),
            "PLACES": sum(1 << k for k in self.places),
            "STRIDE": self.stride,
            "SLOTS": slots(len(self.masses), len(self.places), self.order),
            "ORDER": self.order,
            "FIRST_MASS": min(lower, default=-1),
            "LAST_MASS": max(upper, default=-1),
        }


FEW = Nodes(16, (0, 1, 2, 4, 6, 8, 10, 12, 14, 15, 16), (0, 4, 8, 12, 16), 2, 4)
LEFT_OUT = (6, 10)
"""The scales that the others foretell."""


class _Condition(NamedTuple):
    """The value of a derivative of the polynomial, counted from the value itself."""

    alpha: Fraction
    derivative: int

    def on(self, power: int) -> Fraction:
        """Of (α − ½) to a power."""
        if power < self.derivative:
            return Fraction(0)
        factor = Fraction(1)
        for passed in range(self.derivative):
            factor *= power - passed
        return factor * (self.alpha - Fraction(1, 2)) ** (power - self.derivative)


_CONDITIONS = [
    *(_Condition(Fraction(k, FEW.cells), 0) for k in FEW.masses),
    *(_Condition(Fraction(k, FEW.cells), n) for k in FEW.places for n in range(1, FEW.order + 1)),
]


@functools.lru_cache(maxsize=8)
def weights(count: int) -> list[list[float]]:
    """What each condition weighs in the masses at `count` even scales and in the errors at `LEFT_OUT`, [C, K + 2].

    >>> rows = weights(21)
    >>> len(rows), [row[0] for row in rows[:3]]  # the mass at 0 is the first condition
    (21, [1.0, 0.0, 0.0])
    """
    grid = [Fraction(k, count - 1) for k in range(count)]
    left_out = [_Condition(Fraction(k, FEW.cells), 0) for k in LEFT_OUT]
    others = [condition for condition in _CONDITIONS if condition not in left_out]
    foretold = dict(zip(others, _solved(others, [condition.alpha for condition in left_out]), strict=True))
    rows = []
    for condition, at_scales in zip(_CONDITIONS, _solved(_CONDITIONS, grid), strict=True):
        errors = foretold.get(condition) or [-Fraction(condition == other) for other in left_out]
        rows.append([float(weight) for weight in (*at_scales, *errors)])
    return rows


def _solved(conditions: Sequence[_Condition], scales: Sequence[Fraction]) -> list[list[Fraction]]:
    """What each condition weighs in the polynomial's value at each scale: exact, by elimination."""
    size = len(conditions)
    rows = [
        [*(condition.on(power) for condition in conditions), *(_Condition(alpha, 0).on(power) for alpha in scales)]
        for power in range(size)
    ]
    for column in range(size):
        pivot = next(number for number in range(column, size) if rows[number][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        divisor = rows[column][column]
        rows[column] = [value / divisor for value in rows[column]]
        for number, row in enumerate(rows):
            factor = row[column]
            if number != column and factor:
                rows[number] = [value - factor * of for value, of in zip(row, rows[column], strict=True)]
    return [row[size:] for row in rows]


@functools.lru_cache(maxsize=64)
def weights_on(count: int, device: torch.device) -> Tensor:
    """Those on a device, float64 [C, K + 2], sent there once."""
    return torch.tensor(weights(count), dtype=torch.float64).to(device)
