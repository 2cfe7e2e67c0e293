"""Rotary positions: the frequencies, the tables and the rotation.

    angle(p, i) = p · f_i,   f_i = theta^(-2i / P)
    (a, b) → (a cos − b sin, b cos + a sin)

for the i-th pair (a, b) of a head. Pairs are (i, i + P/2) in the "half" layout and (2i, 2i + 1) in the
"interleaved" one. Frequencies and angles are float32 whatever the model's dtype, and they are worked out when
they are needed. `rounded` tables are rounded to the dtype of the arithmetic before they are used, which some published
implementations do and others do not; in BF16 the difference shows. Parcae and Attractor store their tables with the
weights: those are rounded to the dtype of the weights (`stored`) and used in float32.

Shapes: B rows, S positions, H heads, P head width, R = P/2 pairs.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.autograd.forward_ad as forward_mode
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from loopscope.kernels.choice import Implementation, takes_kernel

Layout = Literal["half", "interleaved"]


@dataclass(frozen=True)
class Scaling:
    """Frequencies divided by `factor`: all of them, or in Llama 3 those that turn slowly within the original context.

    With t_i = original · f_i / 2π turns and m = clip((t_i − low) / (high − low), 0, 1):
    f_i ← m f_i + (1 − m) f_i / factor.
    """

    factor: float
    low: float | None = None
    high: float = 0.0
    original: int = 0


class RotaryTables(NamedTuple):
    """cos and sin, [1 or B, S, 1, P] (each frequency twice), with the layout that says which entries form a pair."""

    cos: Tensor
    sin: Tensor
    layout: Layout


@dataclass(frozen=True)
class Rotary:
    """What a model's positions mean."""

    head_width: int
    theta: float
    layout: Layout = "half"
    rounded: bool = False
    scaling: Scaling | None = None
    stored: torch.dtype | None = None

    def frequencies(self) -> Tensor:
        """f_i, [R] float32 on the CPU (another device's power function differs in the last bit)."""
        exponent = torch.arange(0, self.head_width, 2, dtype=torch.float32, device="cpu") / self.head_width
        plain = 1.0 / (self.theta**exponent)
        scaling = self.scaling
        if scaling is None or scaling.low is None:
            return plain if scaling is None else plain / scaling.factor
        turns = scaling.original * plain / (2 * math.pi)
        kept = ((turns - scaling.low) / (scaling.high - scaling.low)).clamp(0, 1)
        return kept * plain + (1 - kept) * plain / scaling.factor

    def tables(self, positions: Tensor, dtype: torch.dtype) -> RotaryTables:
        """Tables for positions [1 or B, S], ready for queries and keys of `dtype`."""
        angles = positions.to(torch.float32)[..., None, None] * _frequencies_on(self, positions.device)
        keep = torch.float64 if dtype == torch.float64 else dtype if self.rounded else torch.float32
        cos, sin = (table.to(self.stored or keep).to(keep) for table in (angles.cos(), angles.sin()))
        if self.layout == "half":
            return RotaryTables(torch.cat([cos, cos], dim=-1), torch.cat([sin, sin], dim=-1), "half")
        return RotaryTables(cos.repeat_interleave(2, dim=-1), sin.repeat_interleave(2, dim=-1), "interleaved")


@functools.lru_cache(maxsize=16)
@torch.inference_mode(False)
def _frequencies_on(rotary: Rotary, device: torch.device) -> Tensor:
    # Inside a function transform every result belongs to the transform; what is kept must outlive it.
    with torch._C._DisableFuncTorch():
        return rotary.frequencies().to(device)


def rotate(x_BSHP: Tensor, tables: RotaryTables) -> Tensor:
    """Queries or keys rotated by their positions, in the dtype they came in.

    The products are rounded before they are added, as in the published implementations. Without gradients the
    sum goes into the first product's memory; the numbers are the same.
    """
    straight, crossed = x_BSHP * tables.cos, x_BSHP * tables.sin
    if tables.layout == "half":
        width = x_BSHP.shape[-1] // 2
        one, two = slice(None, width), slice(width, None)
    else:
        one, two = slice(0, None, 2), slice(1, None, 2)
    if type(straight) is Tensor and not torch.is_grad_enabled() and forward_mode._current_level < 0:
        straight[..., one].sub_(crossed[..., two])
        straight[..., two].add_(crossed[..., one])
        return straight.to(x_BSHP.dtype)
    rotated = (straight[..., one] - crossed[..., two], straight[..., two] + crossed[..., one])
    if tables.layout == "half":
        return torch.cat(rotated, dim=-1).to(x_BSHP.dtype)
    return torch.stack(rotated, dim=-1).reshape(x_BSHP.shape).to(x_BSHP.dtype)


def rotate_own(
    x_BSHP: Tensor, tables: RotaryTables, bias_HP: Tensor | None = None, impl: Implementation | None = None
) -> Tensor:
    """`rotate` of x + bias. `x` must be the caller's own: it may be overwritten."""
    if type(x_BSHP) is not Tensor and has_torch_function_unary(x_BSHP):
        # A tensor-like object of another kind may know the operation whole.
        return handle_torch_function(rotate_own, (x_BSHP,), x_BSHP, tables, bias_HP, impl)
    same = bias_HP is None or bias_HP.dtype == x_BSHP.dtype
    known = tables.cos.dtype in (x_BSHP.dtype, torch.float32)
    if same and known and takes_kernel(x_BSHP, impl) and x_BSHP.stride(-1) == 1:
        from loopscope.kernels.layers import rotate_in_place

        interleaved = tables.layout == "interleaved"
        return rotate_in_place(x_BSHP, tables.cos, tables.sin, bias_HP, interleaved=interleaved)
    return rotate(x_BSHP if bias_HP is None else x_BSHP + bias_HP, tables)
