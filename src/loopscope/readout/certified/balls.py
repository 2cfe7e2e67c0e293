r"""The second stage, for what float64 leaves open: the same in Arb's balls, from exact logits (python-flint).

**Exact logits.** A row of numbers is cut into slices: the first is the row rounded to multiples of 2^{e−β} with 2^e
above its largest entry, the next one what is left, rounded to multiples of 2^{e−2β}, and so on. Every slice is an
integer of at most β bits times a power of two. With 2β + ⌈log₂ D⌉ ≤ 53 the product of two slices over D columns is a
sum of integers below 2⁵³ at every step: float64 computes it exactly, in any order, with or without fused multiply-add.
A logit is the sum of some ten such products, an exact sum in Arb. BF16 and FP32 rows end after a few slices; what is
left of a row after `_SLICES` enters as a radius, Σ|rest| max|W|.

**Balls.** Arb's arithmetic and functions enclose by construction; `BITS` bits are far beyond what float64 stores. The
formulas are those of `tokens` and `joint`. Where an update moves no logit against the reference's, expm1 0 = 0 and
log1p 0 = 0 are exact there as well, and the gain is exactly zero.

One question at a time, `MOST_LOGITS` logits at most: an entry costs some ten microseconds.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from itertools import combinations, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from loopscope.readout.certified.update import States

BITS = 200
"""Precision of the balls."""
MOST_LOGITS = 1 << 24
"""Logits of one question, reference tokens times vocabulary, up to which it is computed in balls."""
_SLICES = 6
QUANTITIES = ("utility", "slope", "quadratic", "gain", "quarter_gain", "predicted_gain", "prediction")


class Ends(NamedTuple):
    """An enclosure as two float64 numbers."""

    low: float
    high: float


def are_installed() -> bool:
    """Whether python-flint is there."""
    return importlib.util.find_spec("flint") is not None


def enclose_in_balls(states: States, scales: tuple[float, float]) -> dict[str, Ends]:
    """The quantities of one question at 1/4 and α̂."""
    import flint

    options = states.options
    with flint.ctx.workprec(BITS):
        tokens = iter(_tokens(states, (*scales, 1.0)))
        found = [
            [sum(values) / count for values in zip(*islice(tokens, count), strict=True)]
            for count in states.tokens_R.tolist()
        ]
        own = found[0] if options is None else _joint(found, int(options.member[0, options.target[0]]))
        utility, slope, curvature, quarter, predicted, gain = own
        half = curvature / 2
        balls = (utility, slope, half, gain, quarter, predicted, slope + half)
        return dict(zip(QUANTITIES, map(_ends, balls), strict=True))


def _tokens(states: States, scales: Sequence[float]) -> list[list[Any]]:
    """Log probability, φ', φ'' and φ at three scales of each token."""
    from flint import arb

    starts, ends = (exact_products(state, states.weight_VD) for state in (states.before_ND, states.after_ND))
    bias = None if states.bias_V is None else states.bias_V.double().cpu().tolist()
    found = []
    for token, y in enumerate(states.targets_N.tolist()):
        z0, z1 = _logits(starts, token, bias), _logits(ends, token, bias)
        y0, shift = z0[y], z1[y] - z0[y]
        mass = first = second = arb(0)
        grown = [arb(0) for _ in scales]
        for a, (start, end) in enumerate(zip(z0, z1, strict=True)):
            if a == y:
                continue
            t, w = (end - start) - shift, (start - y0).exp()
            mass, first, second = mass + w, first + w * t, second + w * t * t
            grown = [total + w * (t * scale).expm1() for total, scale in zip(grown, scales, strict=True)]
        whole = mass + 1
        mean = first / whole
        gains = [-(total / whole).log1p() for total in grown]
        found.append([-mass.log1p(), -mean, mean * mean - second / whole, *gains])
    return found


def _joint(options: list[list[Any]], right: int) -> list[Any]:
    """The joint utility of options, as in `joint`."""
    from flint import arb

    best, others = options[right], [option for k, option in enumerate(options) if k != right]
    weights = [(option[0] - best[0]).exp() for option in others]
    mass = sum(weights, arb(0))
    pi = [weight / (mass + 1) for weight in weights]
    slope, bent = (
        sum((p * (best[k] - option[k]) for p, option in zip(pi, others, strict=True)), arb(0)) for k in (1, 2)
    )
    members = [(1 / (mass + 1), best), *zip(pi, others, strict=True)]
    variance = sum((p * q * (a[1] - b[1]) ** 2 for (p, a), (q, b) in combinations(members, 2)), arb(0))
    gains = [
        -sum((p * (option[k] - best[k]).expm1() for p, option in zip(pi, others, strict=True)), arb(0)).log1p()
        for k in (3, 4, 5)
    ]
    return [-mass.log1p(), slope, bent - variance, *gains]


class Products(NamedTuple):
    """A Wᵀ as a sum of exact float64 matrices, and what is left of it at most, row by row."""

    parts: list[np.ndarray[Any, np.dtype[np.float64]]]
    rest_t: list[float]


def exact_products(a_tD: Tensor, weight_VD: Tensor) -> Products:
    """The product of two stored matrices without rounding."""
    a_tD, weight_VD = a_tD.detach().double(), weight_VD.detach().double()
    bits = (53 - math.ceil(math.log2(max(2, a_tD.shape[1])))) // 2
    rows, row_rest_t = _slices(a_tD, bits)
    columns, column_rest_V = _slices(weight_VD, bits)
    parts = [(row @ column.T).cpu().numpy() for row in rows for column in columns]
    largest = float(weight_VD.abs().max())
    rest_t = row_rest_t * largest + a_tD.abs().sum(1) * float(column_rest_V.max())
    # More than the rounding of these few operations on numbers of one sign.
    return Products(parts, [x * (1.0 + 2.0**-20) for x in rest_t.tolist()])


def _slices(a_tD: Tensor, bits: int) -> tuple[list[Tensor], Tensor]:
    """Slices of `bits` bits that add up to the rows, and Σ|rest| of each row."""
    largest_t1 = a_tD.abs().amax(1, keepdim=True)
    _, exponent_t1 = torch.frexp(largest_t1)
    found, rest = [], a_tD
    for number in range(1, _SLICES + 1):
        # Powers of two scale exactly; far below the smallest normal number a row keeps its rest as a radius.
        power_t1 = exponent_t1 - number * bits
        unit_t1 = torch.ldexp(torch.ones_like(largest_t1), power_t1.clamp(min=-1000))
        piece = torch.round(rest / unit_t1) * unit_t1
        found.append(piece)
        rest = rest - piece
        if not bool(rest.any()):
            break
    return found, rest.abs().sum(1)


def _logits(products: Products, token: int, bias: list[float] | None) -> list[Any]:
    from flint import arb

    rest = products.rest_t[token]
    radius = arb(0, rest) if rest else arb(0)
    rows = [part[token].tolist() for part in products.parts]
    found = []
    for entry, numbers in enumerate(zip(*rows, strict=True)):
        total = arb(numbers[0]) + radius
        for number in numbers[1:]:
            if number:
                total = total + number
        found.append(total if bias is None else total + bias[entry])
    return found


def _ends(ball: Any) -> Ends:
    """The ball between two float64 numbers; exactly zero stays so."""
    if ball.is_zero():
        return Ends(0.0, 0.0)
    return Ends(math.nextafter(float(ball.lower()), -math.inf), math.nextafter(float(ball.upper()), math.inf))
