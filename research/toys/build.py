"""A fresh model, its compiled blocks and its optimisers: Adam for vectors, Muon for the matrices inside the blocks.

Muon is momentum whose matrix is replaced by its nearest orthogonal one:

    m ← μ m + g,   U = orthogonal(g + μ m),   W ← (1 − ηλ) W − η √max(1, rows/columns) U

`orthogonal` is five steps of the quintic Newton-Schulz iteration x ← a x + (b xxᵀ + c (xxᵀ)²) x, which sends every
singular value near 1. Equal-sized matrices go through it together.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from loopscope.models.families.huginn import Huginn, HuginnConfig
from loopscope.models.families.ouro import Ouro, OuroConfig
from loopscope.models.layers.blocks import Stream
from research.toys.recipe import Recipe

_A, _B, _C = 3.4445, -4.7750, 2.0315


def orthogonal(matrices_NRC: Tensor, steps: int = 5) -> Tensor:
    """Matrices of about the same singular vectors with all singular values between about 0.7 and 1.2."""
    x = matrices_NRC.to(torch.bfloat16 if matrices_NRC.is_cuda else torch.float32)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    result: Tensor = (x.mT if tall else x).to(matrices_NRC.dtype)
    return result


class Muon(torch.optim.Optimizer):
    """Takes (parameter, parts): a matrix made of `parts` stacked matrices is treated as that many."""

    def __init__(
        self, matrices: Iterable[tuple[nn.Parameter, int]], lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        pairs = list(matrices)
        self._parts = [parts for _, parts in pairs]
        super().__init__(
            [matrix for matrix, _ in pairs], {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One update of every matrix that has a gradient."""
        (group,) = self.param_groups
        rate, momentum = group["lr"], group["momentum"]
        shapes: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for matrix, parts in zip(group["params"], self._parts, strict=True):
            if matrix.grad is None:
                continue
            state = self.state[matrix]
            if not state:
                state["momentum"] = torch.zeros_like(matrix)
            held: Tensor = state["momentum"]
            held.mul_(momentum).add_(matrix.grad)
            looking_ahead = matrix.grad.add(held, alpha=momentum)
            for target, update in zip(matrix.chunk(parts), looking_ahead.chunk(parts), strict=True):
                shapes[tuple(target.shape)].append((target, update))
        for (rows, columns), pairs in shapes.items():
            updates = orthogonal(torch.stack([update for _, update in pairs]))
            targets: list[Tensor] = [target for target, _ in pairs]
            torch._foreach_mul_(targets, 1.0 - rate * group["weight_decay"])
            torch._foreach_add_(targets, list(updates.unbind()), alpha=-rate * max(1.0, rows / columns) ** 0.5)


Toy = Ouro | Huginn

_PARTS = {"Wqkv": 3, "fc": 2}
"""Matrices that hold several projections one below the other."""


def new_model(recipe: Recipe, seed: int) -> Toy:
    """The recipe's model with weights drawn from the seed, on the CPU in float32."""
    generator = torch.Generator().manual_seed(seed)
    if recipe.family == "ouro":
        ouro = Ouro(OuroConfig.read(recipe.config))
        _initialise_ouro(ouro, generator)
        return ouro
    huginn = Huginn(HuginnConfig.read(recipe.config))
    _initialise_huginn(huginn, recipe, generator)
    return huginn


@torch.no_grad()
def _initialise_ouro(model: Ouro, generator: torch.Generator) -> None:
    # Every branch ends in a norm, so only the embedding and the norms' weights set the scale of the stream.
    for name, parameter in model.named_parameters():
        if "layernorm_2" in name:
            parameter.fill_(1 / math.sqrt(2 * model.config.num_hidden_layers))
        elif "norm" in name:
            parameter.fill_(1.0)
        elif name == "model.embed_tokens.weight":
            parameter.normal_(0.0, 1.0, generator=generator)
        elif name.startswith("model.early_exit_gate"):
            parameter.zero_()
        elif name == "lm_head.weight":
            parameter.normal_(0.0, 0.02, generator=generator)
        else:
            parameter.normal_(0.0, 1 / math.sqrt(parameter.shape[1]), generator=generator)
    # Equal chances for every loop to begin with: λ_t = 1 / (T + 1 − t) needs a gate that knows t, which it
    # does not; a constant λ = 1/T is the nearest.
    model.model.early_exit_gate.bias.fill_(-math.log(model.trained_depth - 1))


@torch.no_grad()
def _initialise_huginn(model: Huginn, recipe: Recipe, generator: torch.Generator) -> None:
    drawn = recipe.config["init_values"]
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.fill_(1.0)
        elif name.endswith("qk_bias"):
            parameter.zero_()
        else:
            std = drawn["out_proj"] if name.endswith("proj.weight") else drawn["embedding"]
            nn.init.trunc_normal_(parameter, 0.0, std, -3 * std, 3 * std, generator=generator)


def blocks(model: Toy) -> Iterator[nn.Module]:
    """The model's transformer blocks."""
    if isinstance(model, Ouro):
        yield from model.model.layers
    else:
        for part in ("prelude", "core_block", "coda"):
            yield from model.transformer[part].children()


def optimisers(model: Toy, recipe: Recipe) -> tuple[Muon, torch.optim.AdamW]:
    """Muon for the matrices inside the loop's blocks, AdamW for embeddings, head, norms, biases and gate."""
    inside = [(name, weight) for name, weight in model.named_parameters() if _is_block_matrix(name, weight)]
    chosen = {name for name, _ in inside}
    rest = [weight for name, weight in model.named_parameters() if name not in chosen]
    matrices = [(weight, _PARTS.get(name.split(".")[-2], 1)) for name, weight in inside]
    muon = Muon(matrices, recipe.matrix_rate, weight_decay=recipe.weight_decay)
    fused = next(model.parameters()).is_cuda
    adam = torch.optim.AdamW(rest, recipe.vector_rate, betas=(0.9, 0.97), weight_decay=0.0, fused=fused)
    return muon, adam


def _is_block_matrix(name: str, weight: Tensor) -> bool:
    return weight.dim() == 2 and not any(part in name for part in ("embed_tokens", "wte", "lm_head", "early_exit_gate"))


def compile_blocks(model: Toy, backend: str = "inductor") -> None:
    """Replaces the blocks' forward by one compiled function that they share.

    The same code with the weights as inputs: a shape is compiled once, not once a block and loop. The slot is
    that of a cache, which training has none of; passed on, its values would each be compiled for.
    """
    for limit in ("recompile_limit", "cache_size_limit"):
        if hasattr(torch._dynamo.config, limit):
            setattr(torch._dynamo.config, limit, 64)
    compiled: Any = None
    for block in blocks(model):
        if compiled is None:
            compiled = torch.compile(type(block).forward, dynamic=False, backend=backend)
        block.forward = MethodType(_without_slot(compiled), block)  # of the block: a copy's forward is the copy's own


def _without_slot(compiled: Any) -> Any:
    def forward(block: nn.Module, stream: Stream, around: Any, slot: int, next_norm: Any, queries: Any) -> Stream:
        # Under autocast some blocks would get BF16 and some float32, and each be compiled for: one dtype is enough.
        wide = (part.to(torch.promote_types(part.dtype, torch.float32)) for part in stream)
        result: Stream = compiled(block, Stream(*wide), around, 0, next_norm, queries)
        return result

    return forward
