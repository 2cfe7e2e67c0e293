"""The three BF16 parts of float32 numbers in one pass over them; `parts` has the plain code."""

from __future__ import annotations

import torch
from torch import Tensor

from loopscope.triton_kernels.language import Value, constexpr, jit, launch, tl

_BLOCK = 1024


def split_in_one_pass(x: Tensor) -> Tensor:
    """(lo, mid, hi), BF16 [3, *x.shape]."""
    values = x.contiguous()
    out = torch.empty(3, *x.shape, dtype=torch.bfloat16, device=x.device)
    size = x.numel()
    launch(_split, (-(-size // _BLOCK),), x, values, out, size, BLOCK=_BLOCK)
    return out


@jit
def _split(x: Value, out: Value, size: Value, BLOCK: constexpr) -> None:
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    value = tl.load(x + at, mask=inside, other=0.0)
    hi = value.to(tl.bfloat16)
    rest = value - hi.to(tl.float32)
    mid = rest.to(tl.bfloat16)
    lo = (rest - mid.to(tl.float32)).to(tl.bfloat16)
    whole = tl.cast(size, tl.int64)
    tl.store(out + at, lo, mask=inside)
    tl.store(out + whole + at, mid, mask=inside)
    tl.store(out + 2 * whole + at, hi, mask=inside)
