"""The ways in which φ through an affine head is computed, and the one place that chooses between them.

`impl=` of `affine_path` and `affine_path_from_states` takes the name of a way, or "auto":

>>> for way in WAYS.values():
...     print(f"{way.name}: {way.purpose}")
fused: BF16 or FP16 states and head on a GPU, read in float32: surveys, both ends, one scale per example
fp64_kernel: evenly spaced scales in float64 on a GPU, or any survey there; stored logits at one scale per example
even: evenly spaced scales in float64 on any device, or any survey
moments: any scales in float64
reference: what the others are tested against: whole rows, one scale after the other, float64
autograd: as in the paper: gradient and Hessian-vector product

What a way does not answer (`even` knows no other scales, for instance) goes to the next one of its line in `_LINES`; a
path says in `ways_taken` which ways answered.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.errors import LoopscopeError
from loopscope.kernels.choice import takes_kernel
from loopscope.readout.checks import require_choice


@dataclass(frozen=True)
class Way:
    """One way to compute φ and its derivatives.

    Attributes:
        name: what `impl=` calls it.
        purpose: what it is for.
        cost: what it costs, beside the two logit products of a token.
        max_order: the highest derivative.
    """

    name: str
    purpose: str
    cost: str
    max_order: int = 4


WAYS: dict[str, Way] = {
    way.name: way
    for way in (
        Way(
            "fused",
            "BF16 or FP16 states and head on a GPU, read in float32: surveys, both ends, one scale per example",
            "little more than the products on tensor cores; no logit is written",
        ),
        Way(
            "fp64_kernel",
            "evenly spaced scales in float64 on a GPU, or any survey there; stored logits at one scale per example",
            "some 30 multiplications per entry and interval of scales, in registers",
        ),
        Way(
            "even",
            "evenly spaced scales in float64 on any device, or any survey",
            "one exponential and some 30 multiplications per entry and interval of scales",
        ),
        Way("moments", "any scales in float64", "two exponentials per entry and scale"),
        Way(
            "reference",
            "what the others are tested against: whole rows, one scale after the other, float64",
            "all logits in memory",
        ),
        Way(
            "autograd", "as in the paper: gradient and Hessian-vector product", "two backward passes for every scale", 2
        ),
    )
}

IMPLEMENTATIONS = ("auto", *WAYS)
WHOLE_ROWS = ("reference", "autograd")
"""Ways that work on all entries of the vocabulary at once."""
EVEN_WAYS = ("fp64_kernel", "even")

_LINES: dict[str, tuple[str, ...]] = {
    "auto": ("fused", "fp64_kernel", "even", "moments"),
    "fused": ("fused", "fp64_kernel", "even", "moments"),
    "fp64_kernel": ("fp64_kernel", "moments"),
    "even": ("even", "moments"),
}
_FEWEST_CELLS = 4
_ROUNDING = 2.0**-52  # of a scale, however it was computed


class Asked(NamedTuple):
    """What a path is asked for.

    Attributes:
        even: whether at evenly spaced scales from 0 to 1, and enough of them for `even` to pay.
        fused: whether the fused kernels have an answer to it.
        own: whether at one scale per example, of logits that are stored.
    """

    even: bool = False
    fused: bool = False
    own: bool = False


def may_take(impl: str, name: str) -> bool:
    """Whether a path made with `impl` may be answered by the way `name`.

    >>> may_take("auto", "fused"), may_take("even", "fused")
    (True, False)
    """
    return name in _LINES.get(impl, (impl,))


def choose(impl: str, asked: Asked, on: Tensor, *, has_fused: bool) -> str:
    """The name of the way that answers; `on` is a float64 tensor on the device where it is computed."""
    for name in _LINES.get(impl, (impl,)):
        if name == "fused":
            takes = has_fused and asked.fused
        elif name == "fp64_kernel":
            takes = (asked.even or asked.own) and takes_kernel(on, dtypes=(torch.float64,))
        elif name == "even":
            takes = asked.even
        else:
            takes = True
        if takes:
            return name
    raise AssertionError(f"{impl} has no way that takes everything")


def check_impl(impl: str, on: Tensor) -> str:
    """A name of `IMPLEMENTATIONS` that can be had on this device, or one line."""
    require_choice("impl", impl, IMPLEMENTATIONS)
    if impl == "fp64_kernel" and not takes_kernel(on, dtypes=(torch.float64,)):
        raise LoopscopeError(
            f"impl='fp64_kernel' needs a CUDA device with Triton, not {on.device}; impl='even' is the same in torch."
        )
    return impl


def is_even(scales: Sequence[float]) -> bool:
    """Whether these are evenly spaced scales from 0 to 1, and enough of them for `even` to pay.

    >>> is_even([0.0, 0.25, 0.5, 0.75, 1.0]), is_even([0.0, 0.25, 0.6, 0.75, 1.0]), is_even([0.0, 1.0])
    (True, False, False)
    """
    cells = len(scales) - 1
    if cells < _FEWEST_CELLS:
        return False
    exact = _evenly(cells)
    return scales == exact or all(abs(scale - k) <= _ROUNDING for scale, k in zip(scales, exact, strict=True))


@functools.lru_cache(maxsize=64)
def _evenly(cells: int) -> list[float]:
    return [k / cells for k in range(cells + 1)]
