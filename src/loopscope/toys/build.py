"""A fresh model, its optimisers, and its compiled blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from loopscope.models.huginn import Huginn, HuginnConfig
from loopscope.models.normalisation import Stream
from loopscope.models.ouro import Ouro, OuroConfig
from loopscope.toys.muon import Muon
from loopscope.toys.recipe import Recipe

Toy = Ouro | Huginn

_PARTS = {"Wqkv": 3, "fc": 2}
"""Matrices that hold several projections one below the other."""


def new_model(recipe: Recipe, seed: int) -> Toy:
    """The recipe's model with weights drawn from the seed, on the CPU in float32."""
    generator = torch.Generator().manual_seed(seed)
    if recipe.family == "ouro":
        ouro = Ouro(OuroConfig.from_json(recipe.config))
        _initialise_ouro(ouro, generator)
        return ouro
    huginn = Huginn(HuginnConfig.from_json(recipe.config))
    _initialise_huginn(huginn, recipe, generator)
    return huginn


@torch.no_grad()
def _initialise_ouro(model: Ouro, generator: torch.Generator) -> None:
    # Every branch ends in a norm, so only the embedding and the norms' weights set the scale of the stream.
    for name, parameter in model.named_parameters():
        if "layernorm_2" in name:
            parameter.fill_(1 / math.sqrt(2 * model.config.layers))
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
            std = drawn["out_proj"] if name.endswith("proj.weight") else drawn["std"]
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
        block.forward = _without_slot(compiled, block)


def _without_slot(compiled: Any, block: nn.Module) -> Any:
    def forward(stream: Stream, around: Any, slot: int, next_norm: Any, queries: Any) -> Stream:
        # Under autocast some blocks would get BF16 and some float32, and each be compiled for: one dtype is enough.
        wide = Stream(stream.state.float(), stream.normed.float())
        result: Stream = compiled(block, wide, around, 0, next_norm, queries)
        return result

    return forward
