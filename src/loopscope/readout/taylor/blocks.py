"""Rules for whole operations of a transformer block that models name themselves: the gated activation, the rotation.

A model that hands `gated_silu_joined` and `rotate_own` over by torch's own protocol (`__torch_function__`) gets these.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from loopscope.readout.taylor.core import Series, implements
from loopscope.readout.taylor.elementwise import mul, silu
from loopscope.readout.taylor.kernels import takes_series_kernel


@implements("gated_silu_joined")
def gated_silu_joined(both: Series, plain: bool = False, impl: Any = None) -> Series:
    """silu(gate) · up from gate and up side by side, [..., 2F] → [..., F], gate first."""
    c = both.coefficients
    if takes_series_kernel(c, impl):
        from loopscope.readout.taylor.kernels.gated_silu import gated_silu

        return Series(gated_silu(c))
    inner = both.shape[-1] // 2
    return mul(silu(Series(c[..., :inner])), Series(c[..., inner:]))


@implements("rotate_own")
def rotate_own(x: Series, tables: Any, bias: Tensor | None = None, impl: Any = None) -> Series:
    """Pairs of entries turned by the angles of `tables` (cos, sin, layout): linear, each coefficient by itself.

    A bias is turned by itself and joins the constant coefficient.
    """
    out = _turned(x.coefficients, tables)
    if bias is not None:
        out[0] += _turned(bias, tables)
    return Series(out)


def _turned(c: Tensor, tables: Any) -> Tensor:
    """(a, b) → (a cos − b sin, b cos + a sin)."""
    if tables.layout == "interleaved" and c.dtype == tables.cos.dtype:
        # Neighbours as complex numbers: one pass over memory.
        turn = torch.complex(tables.cos[..., ::2], tables.sin[..., ::2])
        return torch.view_as_real(_as_complex(c) * turn).flatten(-2)
    straight: Tensor = c * tables.cos
    crossed: Tensor = c * tables.sin
    half = c.shape[-1] // 2
    split = tables.layout == "half"
    one, two = (slice(None, half), slice(half, None)) if split else (slice(0, None, 2), slice(1, None, 2))
    straight[..., one] -= crossed[..., two]
    straight[..., two] += crossed[..., one]
    return straight.to(c.dtype)


def _as_complex(c: Tensor) -> Tensor:
    pairs = c.unflatten(-1, (-1, 2))  # type: ignore[no-untyped-call]
    even = c.storage_offset() % 2 == 0 and all(stride % 2 == 0 for stride in pairs.stride()[:-1])
    return torch.view_as_complex(pairs if even and pairs.stride(-1) == 1 else pairs.contiguous())
