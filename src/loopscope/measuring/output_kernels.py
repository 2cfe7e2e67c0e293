"""The sums of `output_change` in two looks at the logits of both ends; blocks are added in a fixed order.

A program takes a block of one token's vocabulary. With x the logits less their largest and e = exp x, the first look
gives Σe and Σe·v; the second, with c = v − Σe·v/Σe, gives Σe(e^c − 1 − c), Σe(e^c − 1)(x + c) and Σe(x + c). Logits are
FP32, everything after the loads is float64.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from loopscope.kernels.language import Value, constant, constexpr, jit, launch, power_of_two, tl

_TILE = 512
_VOCABULARY_BLOCK = 8192
_NEAR = constant(0.25)
_C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11 = (constant(1.0 / math.factorial(k)) for k in range(2, 12))


def change_sums(z0_nV: Tensor, z1_nV: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Σe, Σe(e^c − 1 − c), Σe(e^c − 1)(x + c) and Σe(x + c) of every token, float64 [n] each."""
    z0_nV, z1_nV = z0_nV.contiguous(), z1_nV.contiguous()
    tokens, vocabulary = z0_nV.shape
    blocks = -(-vocabulary // _VOCABULARY_BLOCK)
    top_n = z0_nV.amax(1)
    first_B2n, second_B3n = (
        torch.empty(blocks, sums, tokens, dtype=torch.float64, device=z0_nV.device) for sums in (2, 3)
    )
    sizes: dict[str, Any] = {"VOCABULARY_BLOCK": _VOCABULARY_BLOCK, "TILE": min(_TILE, power_of_two(vocabulary))}
    grid = (tokens, blocks)
    launch(_masses, grid, z0_nV, z0_nV, z1_nV, top_n, first_B2n, tokens, vocabulary, **sizes)
    mass_n, moved_n = first_B2n.sum(0)
    launch(_changes, grid, z0_nV, z0_nV, z1_nV, top_n, moved_n / mass_n, second_B3n, tokens, vocabulary, **sizes)
    excess_n, gone_n, level_n = second_B3n.sum(0)
    return mass_n, excess_n, gone_n, level_n


@jit
def _masses(
    z0: Value,
    z1: Value,
    top: Value,
    out: Value,
    tokens: Value,
    vocabulary: Value,
    VOCABULARY_BLOCK: constexpr,
    TILE: constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    largest = tl.load(top + token).to(tl.float64)
    masses = tl.zeros((TILE,), dtype=tl.float64)
    moved = tl.zeros((TILE,), dtype=tl.float64)
    first = tl.program_id(1) * VOCABULARY_BLOCK
    for start in range(first, min(first + VOCABULARY_BLOCK, vocabulary), TILE):
        entry = start + tl.arange(0, TILE)
        inside = entry < vocabulary
        a = tl.load(z0 + token * vocabulary + entry, mask=inside, other=0.0).to(tl.float64)
        b = tl.load(z1 + token * vocabulary + entry, mask=inside, other=0.0).to(tl.float64)
        e = tl.where(inside, tl.exp(a - largest), 0.0)
        masses += e
        moved += e * (b - a)
    here = out + tl.program_id(1).to(tl.int64) * 2 * tokens + token
    tl.store(here, tl.sum(masses, axis=0))
    tl.store(here + tokens, tl.sum(moved, axis=0))


@jit
def _changes(
    z0: Value,
    z1: Value,
    top: Value,
    mean: Value,
    out: Value,
    tokens: Value,
    vocabulary: Value,
    VOCABULARY_BLOCK: constexpr,
    TILE: constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    largest = tl.load(top + token).to(tl.float64)
    middle = tl.load(mean + token)
    excesses = tl.zeros((TILE,), dtype=tl.float64)
    gone = tl.zeros((TILE,), dtype=tl.float64)
    levels = tl.zeros((TILE,), dtype=tl.float64)
    first = tl.program_id(1) * VOCABULARY_BLOCK
    for start in range(first, min(first + VOCABULARY_BLOCK, vocabulary), TILE):
        entry = start + tl.arange(0, TILE)
        inside = entry < vocabulary
        a = tl.load(z0 + token * vocabulary + entry, mask=inside, other=0.0).to(tl.float64)
        b = tl.load(z1 + token * vocabulary + entry, mask=inside, other=0.0).to(tl.float64)
        x = tl.where(inside, a - largest, 0.0)
        c = tl.where(inside, b - a - middle, 0.0)
        e = tl.where(inside, tl.exp(x), 0.0)
        # e^c − 1 − c by its series where the difference would lose its digits.
        series = _C9 + c * (_C10 + c * _C11)
        series = _C5 + c * (_C6 + c * (_C7 + c * (_C8 + c * series)))
        series = c * c * (_C2 + c * (_C3 + c * (_C4 + c * series)))
        excess = tl.where(tl.abs(c) < _NEAR, e * series, tl.exp(x + c) - e * (1.0 + c))
        excess = tl.where(inside, excess, 0.0)
        excesses += excess
        gone += (excess + e * c) * (x + c)
        levels += e * (x + c)
    here = out + tl.program_id(1).to(tl.int64) * 3 * tokens + token
    tl.store(here, tl.sum(excesses, axis=0))
    tl.store(here + tokens, tl.sum(gone, axis=0))
    tl.store(here + 2 * tokens, tl.sum(levels, axis=0))
