"""Random and adversarial updates under an affine head, and what is true of them in Arb, from the stored numbers.

Nothing here uses loopscope's own balls: logits are matrix products of Arb over the exact states, one path at a time.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from flint import arb, arb_mat, ctx
from torch import Tensor

KINDS = ("random", "peaked", "flat", "cancelling", "tiny gap", "large", "common")
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
BITS = 200
MOST_BITS = 12_800


@dataclass(frozen=True)
class Case:
    """One update of one token; the head's rows are the vocabulary."""

    kind: str
    before_1D: Tensor
    after_1D: Tensor
    weight_VD: Tensor
    bias_V: Tensor | None
    target: int


def case(number: int) -> Case:
    """The case of a number, always the same: kinds, dtypes, widths, vocabularies and displacements take turns."""
    chance = np.random.default_rng(number)
    kind, dtype = KINDS[number % len(KINDS)], DTYPES[(number // len(KINDS)) % len(DTYPES)]
    vocabulary = round(math.exp(chance.uniform(math.log(2), math.log(50_000))))
    width = int(chance.integers(1, 9)) if vocabulary > 2000 else int(chance.integers(1, 65))
    moved = 10.0 ** chance.uniform(-8, 2)
    size = {"peaked": 10.0 ** chance.uniform(0.7, 2.5), "flat": 1e-3, "large": 300.0}.get(kind, 1.0)
    weight = chance.standard_normal((vocabulary, width)) / math.sqrt(width)
    before = size * chance.standard_normal(width)
    direction = chance.standard_normal(width)
    if kind == "cancelling":
        # Every row has its mirror image, and the state sees neither: slopes cancel but for the reference's own.
        before -= direction * (before @ direction) / (direction @ direction)
        mirror = weight - 2 * np.outer(weight @ direction, direction) / (direction @ direction)
        weight = np.concatenate([weight, mirror])[:vocabulary]
    if kind == "common":
        # What all rows share cancels in every difference, and leaves its rounding behind.
        weight = 1e-2 * weight + 100.0 * chance.standard_normal(width)
    before_D = torch.tensor(before, dtype=torch.float64).to(dtype)
    # Small steps on coarse numbers: FP64 states hold any displacement, the others what their spacing allows.
    step = moved * torch.tensor(direction, dtype=torch.float64)
    after_D = (before_D.double() + step).to(dtype)
    weight_VD = torch.tensor(weight, dtype=torch.float64).to(dtype)
    bias_V = torch.tensor(chance.standard_normal(vocabulary)).to(dtype) if chance.random() < 0.25 else None
    target = _target(kind, weight_VD, before_D, chance)
    return Case(kind, before_D[None], after_D[None], weight_VD, bias_V, target)


def _target(kind: str, weight_VD: Tensor, before_D: Tensor, chance: np.random.Generator) -> int:
    z_V = weight_VD.double() @ before_D.double()
    order = torch.argsort(z_V)
    if kind == "tiny gap" and len(order) > 1:
        weight_VD[order[-2]] = weight_VD[order[-1]]  # two entries that nothing can tell apart
    return int({0: order[-1], 1: order[0]}.get(int(chance.integers(4)), chance.integers(len(order))))


@dataclass(frozen=True)
class Truth:
    """Relative logits of a case as balls, and what follows from them."""

    s: list[arb]
    t: list[arb]

    @classmethod
    def of(cls, given: Case) -> "Truth":
        """Exact products of the stored numbers; call it within `ctx.workprec`."""
        weight = arb_mat(given.weight_VD.double().tolist())
        states = torch.cat([given.before_1D, given.after_1D]).double().T.tolist()
        products = (weight * arb_mat(states)).entries()
        bias = [0.0] * (len(products) // 2) if given.bias_V is None else given.bias_V.double().tolist()
        start = [z + b for z, b in zip(products[0::2], bias, strict=True)]
        end = [z + b for z, b in zip(products[1::2], bias, strict=True)]
        y = given.target
        moved = end[y] - start[y]
        keep = [a for a in range(len(start)) if a != y]
        return cls([start[a] - start[y] for a in keep], [(end[a] - start[a]) - moved for a in keep])

    @cached_property
    def weights(self) -> list[arb]:
        """e^s at scale 0."""
        return [s.exp() for s in self.s]

    def log_p(self) -> arb:
        """log p_y at scale 0."""
        return -_total(self.weights).log1p()

    def derivatives(self) -> tuple[arb, arb]:
        """The first two derivatives of φ at scale 0."""
        first = [w * t for w, t in zip(self.weights, self.t, strict=True)]
        whole = _total(self.weights) + 1
        mean = _total(first) / whole
        return -mean, mean * mean - _total(w * t for w, t in zip(first, self.t, strict=True)) / whole

    def higher(self, alpha: float) -> tuple[arb, arb]:
        """The second and the third derivative of φ at any scale."""
        weights = [(s + t * alpha).exp() for s, t in zip(self.s, self.t, strict=True)]
        whole = _total(weights) + 1
        m, second, third = (_total(w * t**j for w, t in zip(weights, self.t, strict=True)) / whole for j in (1, 2, 3))
        return m * m - second, -(third - 3 * m * second + 2 * m**3)

    def gain(self, alpha: float) -> arb:
        """φ(α) = −log1p E_0[e^{αt} − 1]."""
        grown = _total(w * (t * alpha).expm1() for w, t in zip(self.weights, self.t, strict=True))
        return -(grown / (_total(self.weights) + 1)).log1p()

    def absolute_slope(self) -> float:
        """Σ p|t|, what A and ΔU add up."""
        terms = _total(w * abs(t) for w, t in zip(self.weights, self.t, strict=True))
        return float(terms / (_total(self.weights) + 1))


def _total(terms: Iterable[arb]) -> arb:
    return sum(terms, arb(0))


def violations(
    given: Case, true: Callable[[Truth], dict[str, arb]], enclosed: Mapping[str, tuple[float, float]]
) -> list[str]:
    """The quantities whose truth is not inside its enclosure.

    A ball that overlaps an end of an enclosure decides nothing (a variance of e^-300 is far below 200 bits of its
    terms); it is computed again with four times the bits, until it lies inside or outside.
    """
    open_names, bits = set(enclosed), BITS
    while open_names and bits <= MOST_BITS:
        with ctx.workprec(bits):
            found = true(Truth.of(given))
            for name in sorted(open_names):
                low, high = (arb(end) for end in enclosed[name])
                if low <= found[name] and found[name] <= high:
                    open_names.remove(name)
                elif found[name] < low or found[name] > high:
                    bits = MOST_BITS
        bits *= 4
    return [f"{given.kind}: {name} is not in [{enclosed[name][0]!r}, {enclosed[name][1]!r}]" for name in open_names]
