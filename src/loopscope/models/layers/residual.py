"""The residual stream: its norms and its blocks.

    x ← sum_norm(x + branch_norm(layer(input_norm(x))))          for attention, then for the MLP

A norm left out is the identity. The norm ahead of the next branch is taken where the sum is made: one pass over the
states instead of two.

RMSNorm: y = round(x / sqrt(mean(x²) + eps)) · g, with g the weight, 1 + weight, or one. The mean and the quotient are
taken in float32 (float64 stays float64), rounded to x's dtype, and only then multiplied by g, as the published models
do: in BF16 the order matters. `plain=True` means elementary operations alone, which autograd differentiates to any
order.

Shapes: B rows, S positions, N positions read, D hidden width.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from loopscope.kernels.choice import Implementation, takes_kernel
from loopscope.models.layers.mask import AttentionContext, Queries, queries_at
from loopscope.models.protocol import select


class RMSNorm(nn.Module):
    """Over the last dimension."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def gain(self, x: Tensor) -> Tensor:
        """What a normed `x` is multiplied by."""
        return self.weight

    def forward(self, x: Tensor, plain: bool = False, impl: Implementation | None = None) -> Tensor:
        """Normalises over the last dimension."""
        gain = self.gain(x)
        if plain:
            return _normalise_plain(x, self.eps) * gain
        if takes_kernel(x, impl) and x.dtype == gain.dtype:
            from loopscope.kernels.layers import rms_norm

            return rms_norm(x, gain, self.eps)
        if type(x) is not Tensor:
            return functional.rms_norm(x, (x.shape[-1],), gain, self.eps)
        return functional.rms_norm(x, (x.shape[-1],), None, self.eps) * gain


class OffsetNorm(RMSNorm):
    """Its weight is stored as an offset: g = 1 + weight."""

    def gain(self, x: Tensor) -> Tensor:
        """One more than the weight, rounded as the weight is."""
        return 1 + self.weight


class WeightlessNorm(RMSNorm):
    """Multiplied by one, which changes no bit."""

    def __init__(self, width: int, eps: float) -> None:
        nn.Module.__init__(self)
        self.width, self.eps = width, eps

    def gain(self, x: Tensor) -> Tensor:
        """Ones of x's dtype."""
        return _ones(self.width, x.dtype, x.device)


@functools.lru_cache(maxsize=16)
@torch.inference_mode(False)
def _ones(width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    # Inside a function transform every result belongs to the transform; what is kept must outlive it.
    with torch._C._DisableFuncTorch():
        return torch.ones(width, dtype=dtype, device=device)


def _normalise_plain(x: Tensor, eps: float) -> Tensor:
    wide = x.to(torch.float32) if x.dtype in (torch.bfloat16, torch.float16) else x
    scaled = wide * torch.rsqrt(torch.mean(wide * wide, dim=-1, keepdim=True) + eps)
    return scaled.to(x.dtype) if wide is not x else scaled


class Stream(NamedTuple):
    """The residual stream between two branches.

    Attributes:
        state: the sum so far, [B, S, D].
        normed: what the next branch reads: the sum after that branch's norm, or the sum itself.
    """

    state: Tensor
    normed: Tensor


def add_branch(
    state: Tensor,
    branch: Tensor,
    *,
    branch_norm: RMSNorm | None = None,
    sum_norm: RMSNorm | None = None,
    next_norm: RMSNorm | None = None,
    plain: bool = False,
    impl: Implementation | None = None,
) -> Stream:
    """sum_norm(state + branch_norm(branch)), together with next_norm of it; a norm left out is the identity."""
    norms = (branch_norm, sum_norm, next_norm)
    gains = [None if norm is None else norm.gain(state) for norm in norms]
    same = all(gain is None or gain.dtype == state.dtype for gain in gains)
    if same and not plain and takes_kernel(state, impl):
        from loopscope.kernels.layers import add_branch as kernel

        return Stream(*kernel(state, branch, gains, [0.0 if norm is None else norm.eps for norm in norms]))
    state = state + (branch if branch_norm is None else branch_norm(branch, plain, impl))
    if sum_norm is not None:
        state = sum_norm(state, plain, impl)
    return Stream(state, state if next_norm is None else next_norm(state, plain, impl))


class Names(NamedTuple):
    """What a checkpoint calls a layer of a block and its norms; a norm that there is not has no name."""

    layer: str
    input_norm: str = ""
    branch_norm: str = ""
    sum_norm: str = ""


class Block(nn.Module):
    """Attention, then the MLP, on the residual stream; a family says what they and their norms are called."""

    attention_names: ClassVar[Names]
    mlp_names: ClassVar[Names]

    def __init__(self, attention: nn.Module, mlp: nn.Module, norm: Callable[[], RMSNorm]) -> None:
        super().__init__()
        for names, layer in ((self.attention_names, attention), (self.mlp_names, mlp)):
            self.add_module(names.layer, layer)
            for name in filter(None, names[1:]):
                self.add_module(name, norm())

    def input_norm(self, names: Names) -> RMSNorm | None:
        """The norm ahead of one of the two layers."""
        return self._norm(names.input_norm)

    def _norm(self, name: str) -> RMSNorm | None:
        return cast(RMSNorm, self._modules[name]) if name else None

    def scaled(self, branch: Tensor, names: Names) -> Tensor:
        """The branch as it is added."""
        return branch

    def forward(
        self,
        stream: Stream,
        attention: AttentionContext,
        slot: int,
        next_norm: RMSNorm | None,
        queries: Queries | None = None,
    ) -> Stream:
        """The stream after both branches; `normed` is `next_norm` of the state."""
        plain, modules = attention.plain, self._modules
        state = stream.state if queries is None else queries.pick(stream.state)
        for names, following in ((self.attention_names, self.input_norm(self.mlp_names)), (self.mlp_names, next_norm)):
            layer = cast(nn.Module, modules[names.layer])
            given = (attention, slot, queries) if names is self.attention_names else (plain,)
            stream = add_branch(
                state,
                self.scaled(layer(stream.normed, *given), names),
                branch_norm=self._norm(names.branch_norm),
                sum_norm=self._norm(names.sum_norm),
                next_norm=following,
                plain=plain,
            )
            state = stream.state
        return stream


def run_blocks(
    state: Tensor,
    blocks: Iterable[nn.Module],
    attention: AttentionContext,
    slots: Iterable[int],
    last_norm: RMSNorm | None = None,
    queries: Queries | None = None,
) -> Tensor:
    """The state after all blocks and `last_norm`; at the queries alone, [1, N, D], where there are any.

    Every block but the last still runs at all positions, because the last one's keys need them.
    """
    listed = [cast(Block, block) for block in blocks]
    norms = [*(block.input_norm(block.attention_names) for block in listed), last_norm]
    first = state if listed or queries is None else queries.pick(state)
    stream = Stream(first, first if norms[0] is None else norms[0](first, attention.plain))
    for index, (block, slot) in enumerate(zip(listed, slots, strict=True)):
        is_last = index == len(listed) - 1
        stream = block(stream, attention, slot, norms[index + 1], queries if is_last else None)
    return stream.normed


def read_blocks(
    state: Tensor,
    blocks: Sequence[nn.Module],
    attention: AttentionContext,
    last_norm: RMSNorm | None,
    positions_N2: Tensor | None,
) -> Tensor:
    """What the head reads: [N, D] at positions of (row, position), or [B, S, D] where None.

    The keys and values of these blocks go to the slots −1, −2, …: after every loop, however many there are.
    """
    slots = [-1 - index for index in range(len(blocks))]
    if positions_N2 is None or positions_N2.shape[0] == 0:
        return select(run_blocks(state, blocks, attention, slots, last_norm), positions_N2)
    queries = queries_at(positions_N2, attention, state.shape[0], state.shape[1], state.device)
    hidden = run_blocks(state, blocks, attention, slots, last_norm, queries)
    return hidden.reshape(hidden.shape[1:])
