"""Matrix products, norms, MLPs, and the blocks that they make on the residual stream.

    x ← sum_norm(x + branch_norm(layer(input_norm(x))))          for attention, then for the MLP
    RMSNorm: y = round(x / sqrt(mean(x²) + eps)) · g, with g the weight, 1 + weight, or one
    MLP: down(silu(gate(x)) · up(x)),  silu(x) = x · sigmoid(x)

A norm left out is the identity. The norm ahead of the next branch is taken where the sum is made: one pass over the
states instead of two. Mean and quotient of a norm are taken in float32 (float64 stays float64), rounded to x's dtype,
and only then multiplied by g, as the published models do: in BF16 the order matters. silu is taken in float32 at least
and rounded before it meets `up`. `plain=True` means elementary operations alone, which autograd differentiates to any
order.

CPU libraries add up in another order when a product has only a few rows, and a looped model amplifies that from loop to
loop: small products are therefore padded to 16 rows. oneDNN, which multiplies 16-bit matrices on a CPU, compiles a
kernel of about 0.7 MB for every shape it meets: 16-bit products come in groups of a few fixed numbers of rows.
A matrix may be stored in BF16 where the arithmetic is float32 (`kernels.product`).

`Fusing` modules join the matrices that read the same input into one, of which the named parameters become views: half
the kernel launches, and a checkpoint still maps name by name. Unfused, every parameter is its own, as training needs.

Shapes: B rows, S positions, N positions read, D hidden width, F inner width.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function_unary

from loopscope.kernels.choice import Implementation, takes_kernel
from loopscope.models.batch import select
from loopscope.models.layers.positions import AttentionContext, Queries, queries_at

_ROWS = 16
_BLOCKS = (256, 128, 64, 32, _ROWS)
_HALF = (torch.bfloat16, torch.float16)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """X · weightᵀ + bias over the last dimension."""
    if type(x) is not Tensor or x.device.type != "cpu":
        return _product(x, weight, bias)
    rows = x.shape[:-1].numel()
    if rows >= _ROWS and x.dtype not in _HALF:
        return _product(x, weight, bias)
    padded = max(_ROWS, -(-rows // _ROWS) * _ROWS)
    flat = functional.pad(x.reshape(rows, x.shape[-1]), (0, 0, 0, padded - rows))
    whole = torch.cat([_product(block, weight, bias) for block in torch.split(flat, block_sizes(padded))])
    return whole[:rows].reshape(*x.shape[:-1], weight.shape[0])


def block_sizes(rows: int) -> list[int]:
    """A multiple of 16 as a sum of a few numbers.

    >>> block_sizes(608)
    [256, 256, 64, 32]
    """
    sizes = []
    for size in _BLOCKS:
        sizes += [size] * (rows // size)
        rows %= size
    return sizes


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # A tensor-like object of another kind brings its own rule for products, mixed ones too.
    if type(x) is Tensor and x.dtype != weight.dtype:
        from loopscope.kernels.product import is_mixed, mixed_linear  # loads Triton

        if is_mixed(x, weight):
            return mixed_linear(x, weight, bias)
    return functional.linear(x, weight, bias)


class Linear(nn.Linear):
    """`nn.Linear` by way of `linear`; on the meta device nothing is drawn, for which torch would load its compiler."""

    def reset_parameters(self) -> None:
        """Draws the usual weights where there is memory to hold them."""
        if not self.weight.is_meta:
            super().reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        """[..., in] → [..., out]."""
        return linear(input, self.weight, self.bias)


class Embedding(nn.Embedding):
    """`nn.Embedding` that draws nothing on the meta device."""

    def reset_parameters(self) -> None:
        """Draws the usual weights where there is memory to hold them."""
        if not self.weight.is_meta:
            super().reset_parameters()


class Joined(NamedTuple):
    """Layers that read the same input as one: weight [Σ out, in], bias [Σ out]."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] → [..., Σ out]."""
        return linear(x, self.weight, self.bias)

    def rows(self, outputs: slice) -> Joined:
        """Some of its outputs."""
        return Joined(self.weight[outputs], None if self.bias is None else self.bias[outputs])


class Fusing(nn.Module):
    """A module whose layers `inputs` read the same: one stored matrix, or several that are joined for inference."""

    inputs: list[str]
    joined: Joined | None = None

    def linears(self) -> list[Linear]:
        """The layers that read the same."""
        return [cast(Linear, self._modules[name]) for name in self.inputs]

    def fuse(self) -> None:
        """Joins several layers into one, of which their own parameters become views."""
        layers = self.linears()
        if len(layers) == 1:
            return
        weight = torch.cat([layer.weight.detach() for layer in layers])
        bias = None if layers[0].bias is None else torch.cat([layer.bias.detach() for layer in layers])
        for name, whole in (("weight", weight), ("bias", bias)):
            parts = () if whole is None else torch.split(whole, [layer.out_features for layer in layers])
            for layer, part in zip(layers, parts, strict=False):
                setattr(layer, name, nn.Parameter(part, requires_grad=False))
        self.joined = Joined(weight, bias)

    def joint(self) -> Joined | None:
        """All of them as one; None where gradients must reach their own parameters, or nothing joined them."""
        first = cast(Linear, self._modules[self.inputs[0]])
        if len(self.inputs) == 1:
            return Joined(first.weight, first.bias)
        return None if torch.is_grad_enabled() and first.weight.requires_grad else self.joined


class GatedMLP(Fusing):
    """`names` are the checkpoint's for gate, up and down, or for one matrix of gate and up, gate first, and down."""

    def __init__(self, hidden: int, inner: int, names: str = "gate_proj up_proj down_proj") -> None:
        super().__init__()
        *self.inputs, self.output = names.split()
        for name in self.inputs:
            self.add_module(name, Linear(hidden, inner * (3 - len(self.inputs)), bias=False))
        self.add_module(self.output, Linear(inner, hidden, bias=False))

    def forward(self, x_BSD: Tensor, plain: bool = False) -> Tensor:
        """[B, S, D] → [B, S, D]."""
        joint = self.joint()
        if joint is None:
            gate, up = self.linears()
            active = gated_silu(gate(x_BSD), up(x_BSD), plain)
        else:
            active = gated_silu_joined(joint(x_BSD), plain)
        return cast(Tensor, self.get_submodule(self.output)(active))


def gated_silu(gate: Tensor, up: Tensor, plain: bool) -> Tensor:
    """silu(gate) · up."""
    if not plain:
        return functional.silu(gate) * up
    wide = gate.to(torch.float32) if gate.dtype in _HALF else gate
    return (wide * torch.sigmoid(wide)).to(gate.dtype) * up


def gated_silu_joined(both: Tensor, plain: bool, impl: Implementation | None = None) -> Tensor:
    """The same from gate and up side by side, [..., 2F] → [..., F], gate first."""
    if type(both) is not Tensor and has_torch_function_unary(both):
        # A tensor-like object of another kind may know the operation whole.
        return handle_torch_function(gated_silu_joined, (both,), both, plain, impl)
    if not plain and takes_kernel(both, impl):
        from loopscope.kernels.layers import gated_silu as kernel

        return kernel(both)
    inner = both.shape[-1] // 2
    return gated_silu(both[..., :inner], both[..., inner:], plain)


class SquaredReluMLP(nn.Module):
    """proj(½ relu(fc(x))²)."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.fc = Linear(hidden, inner, bias=False)
        self.proj = Linear(inner, hidden, bias=False)

    def forward(self, x_BSD: Tensor, plain: bool = False) -> Tensor:
        """[B, S, D] → [B, S, D]."""
        return cast(Tensor, self.proj(torch.relu(self.fc(x_BSD)).square() * 0.5))


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
            wide = x.to(torch.float32) if x.dtype in _HALF else x
            scaled = wide * torch.rsqrt(torch.mean(wide * wide, dim=-1, keepdim=True) + self.eps)
            return (scaled.to(x.dtype) if wide is not x else scaled) * gain
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
    """What a checkpoint calls a layer of a block and its norms; a norm that a layer does not have has no name."""

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
        return cast("RMSNorm | None", self._modules.get(names.input_norm))

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
                branch_norm=cast("RMSNorm | None", modules.get(names.branch_norm)),
                sum_norm=cast("RMSNorm | None", modules.get(names.sum_norm)),
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
    return run_blocks(state, blocks, attention, slots, last_norm, queries)[0]
