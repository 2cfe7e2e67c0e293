"""What Parcae is made of: its block, and the decay that joins state and input; `parcae` has the equations.

Shapes: B rows, S positions, N positions asked for, D hidden width, H heads, P head width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from loopscope.kernels.choice import Implementation, takes_kernel
from loopscope.models.layers.attention import Queries, Surroundings, attend
from loopscope.models.layers.blocks import Block, Branch, RMSNorm, WeightlessNorm
from loopscope.models.layers.linear import Fusing, Linear, is_trained, join_linears, linear
from loopscope.models.layers.rope import RotaryTables, rotate_own

GATE_CHANNELS = 32


@dataclass(frozen=True)
class ParcaeSizes:
    """Of one block; `token_values` says whether it adds values of the tokens."""

    hidden: int
    heads: int
    inner: int
    norm_eps: float
    token_values: bool


class ParcaeAttention(Fusing):
    """Attention with rotated, then normed queries and keys, and in some layers values of the tokens."""

    def __init__(self, sizes: ParcaeSizes, number: int) -> None:
        super().__init__()
        wide, self.heads, self.number = sizes.hidden, sizes.heads, number
        self.c_q = Linear(wide, wide, bias=False)
        self.c_k = Linear(wide, wide, bias=False)
        self.c_v = Linear(wide, wide, bias=False)
        self.c_proj = Linear(wide, wide, bias=False)
        self.norm = WeightlessNorm(wide // sizes.heads, torch.finfo(torch.float32).eps)
        self.ve_gate = Linear(GATE_CHANNELS, sizes.heads, bias=False) if sizes.token_values else None

    def fuse(self) -> None:
        """Joins queries, keys and values."""
        self.joined = join_linears([self.c_q, self.c_k, self.c_v])

    def forward(self, x_BSD: Tensor, around: Surroundings, slot: int, queries: Queries | None = None) -> Tensor:
        """[B, S, D] → [B, S, D], or [1, N, D] at the queries."""
        if queries is not None or self.joined is None or is_trained(self.c_q):
            asking, tables = (x_BSD, around.rotary) if queries is None else (queries.pick(x_BSD), queries.rotary)
            q = self._turned(self._heads(self.c_q(asking)), tables, around.plain)
            k = self._turned(self._heads(self.c_k(x_BSD)), around.rotary, around.plain)
            v = self._heads(self.c_v(x_BSD))
        else:
            qkv = self._heads(self.joined(x_BSD))
            qk, v = self._turned(qkv[:, :, : 2 * self.heads], around.rotary, around.plain), qkv[:, :, 2 * self.heads :]
            q, k = qk[:, :, : self.heads], qk[:, :, self.heads :]
        if self.ve_gate is not None:
            gate = _sigmoid(self.ve_gate(x_BSD[..., :GATE_CHANNELS]))
            v = v + (2 * gate)[..., None] * self._heads(around.token_values[self.number])
        if queries is None:
            mixed = attend(q, k, v, around, slot)
        else:
            mixed = queries.in_order(attend(queries.by_row(q), k, v, around, slot, queries.visible_B1MT))
        projected: Tensor = self.c_proj(mixed)
        return projected

    def _turned(self, x_BSHP: Tensor, tables: RotaryTables, plain: bool) -> Tensor:
        if not plain and takes_kernel(x_BSHP) and x_BSHP.stride(-1) == 1:
            from loopscope.models.layers.kernels import rotate_in_place

            return rotate_in_place(x_BSHP, tables.cos, tables.sin, None, interleaved=True, norm_eps=self.norm.eps)
        normed: Tensor = self.norm(rotate_own(x_BSHP, tables), plain)
        return normed

    def _heads(self, flat: Tensor) -> Tensor:
        return flat.reshape(flat.shape[0], flat.shape[1], -1, self.norm.width)


def _sigmoid(x: Tensor) -> Tensor:
    if type(x) is Tensor and x.dtype == torch.float32 and x.device.type == "cpu" and not torch.is_grad_enabled():
        # What is left over from whole vectors is computed otherwise there: the last bit would depend on the batch.
        return torch.sigmoid(x.double()).to(x.dtype)
    return torch.sigmoid(x)


class SquaredReluFeedForward(nn.Module):
    """proj(½ relu(fc(x))²)."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.fc = Linear(hidden, inner, bias=False)
        self.proj = Linear(inner, hidden, bias=False)

    def forward(self, x_BSD: Tensor, plain: bool) -> Tensor:
        """[B, S, D] → [B, S, D]."""
        result: Tensor = self.proj(half_squared_relu(self.fc(x_BSD), plain))
        return result


def half_squared_relu(x: Tensor, plain: bool, impl: Implementation | None = None) -> Tensor:
    """½ relu(x)²."""
    if not plain and takes_kernel(x, impl):
        from loopscope.models.layers.kernels import half_squared_relu as kernel

        return kernel(x)
    return torch.relu(x).square() * 0.5


class ParcaeBlock(Block):
    """Norms before each branch."""

    def __init__(self, sizes: ParcaeSizes, number: int) -> None:
        super().__init__()
        self.norm_1 = RMSNorm(sizes.hidden, sizes.norm_eps)
        self.attn = ParcaeAttention(sizes, number)
        self.norm_2 = RMSNorm(sizes.hidden, sizes.norm_eps)
        self.mlp = SquaredReluFeedForward(sizes.hidden, sizes.inner)

    def branches(self) -> tuple[Branch, Branch]:
        """Norms before each branch."""
        return Branch(self.attn, self.norm_1), Branch(self.mlp, self.norm_2)


class Decay(Fusing):
    """a · s + δ · (B e): what the core reads of the state and of the embedded input; `kept` is a."""

    kept: Tensor | None = None

    def __init__(self, width: int) -> None:
        super().__init__()
        self.A_log = nn.Parameter(torch.zeros(width))
        self.dt_bias = nn.Parameter(torch.zeros(width))
        self.B = nn.Parameter(torch.zeros(width, width))

    def fuse(self) -> None:
        """Works the decay out once."""
        self.kept = self._decay().detach()

    def decay(self) -> Tensor:
        """The decay a, [D]."""
        trained = torch.is_grad_enabled() and self.A_log.requires_grad
        return self._decay() if self.kept is None or trained else self.kept

    def _decay(self) -> Tensor:
        return torch.exp(-self._step() * torch.exp(_wide(self.A_log))).to(self.A_log.dtype)

    def injection(self, embedded: Tensor) -> Tensor:
        """δ · (B e), the same at every step, [B, S, D]."""
        return linear(embedded, self.B) * self._step().to(self.B.dtype)

    def _step(self) -> Tensor:
        return functional.softplus(_wide(self.dt_bias))


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
