"""The ways in which φ through an affine head is computed, and the one place that chooses between them.

`impl=` of `affine_path` and `affine_path_from_states` takes the name of a way, or "auto". A question that a way does
not take (it may ask for scales that are not evenly spaced) goes to the next one of its line in `_LINES`; a path says
in `ways_taken` which ways answered.
"""

from __future__ import annotations

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
            "BF16 or FP16 states and head on a GPU, read in float32: a whole survey, both ends, scales of one's own",
            "little more than the products on tensor cores; no logit is written",
        ),
        Way(
            "fp64_kernel",
            "evenly spaced scales in float64 on a GPU, or any survey there",
            "some 30 multiplications an entry for an interval of scales, in registers",
        ),
        Way(
            "even",
            "evenly spaced scales in float64 on any device, or any survey",
            "one exponential and some 30 multiplications an entry for an interval of scales",
        ),
        Way("moments", "any scales in float64", "two exponentials an entry for every scale"),
        Way("reference", "the yardstick of the others: whole rows, one scale after the other, float64", "memory too"),
        Way("autograd", "the paper's way: gradient and Hessian-vector product", "a backward of a backward a scale", 2),
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
        even: whether at evenly spaced scales from 0 to 1 that are worth a sweep of their own kind.
        fused: whether the fused kernels have an answer to it.
    """

    even: bool = False
    fused: bool = False


def choose(impl: str, asked: Asked, on: Tensor, *, has_fused: bool) -> str:
    """The name of the way that answers; `on` is a float64 tensor on the device where it is computed."""
    for name in _LINES.get(impl, (impl,)):
        if name == "fused":
            takes = has_fused and asked.fused
        elif name == "fp64_kernel":
            takes = asked.even and takes_kernel(on, dtypes=(torch.float64,))
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
    """Whether these are so many evenly spaced scales from 0 to 1 that they are worth a sweep of their own kind.

    >>> is_even([0.0, 0.25, 0.5, 0.75, 1.0]), is_even([0.0, 0.25, 0.6, 0.75, 1.0]), is_even([0.0, 1.0])
    (True, False, False)
    """
    last = len(scales) - 1
    return last >= _FEWEST_CELLS and all(abs(scale - k / last) <= _ROUNDING for k, scale in enumerate(scales))
