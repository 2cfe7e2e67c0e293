"""How large everything is, and random updates of that size.

Sizes are the goals' own on a GPU, what two cores manage in minutes, and seconds for a test. Updates look like a looped
model's: BF16 states of unit RMS, a BF16 head, softmaxes flat to peaked.

Shapes: T reference tokens, D hidden width, V vocabulary entries, b entries of a block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from loopscope.readout.affine.sources import blocks


@dataclass(frozen=True)
class HuginnSizes:
    """A coda of two blocks and a head, and the states that they read."""

    hidden: int
    heads: int
    inner: int
    vocabulary: int
    rows: int
    positions: int

    def as_size(self) -> dict[str, int]:
        """For a row."""
        return {"hidden": self.hidden, "inner": self.inner, "vocabulary": self.vocabulary}


@dataclass(frozen=True)
class Sizes:
    """The numbers of one benchmark.

    Attributes:
        tokens: reference tokens of the affine rows.
        hidden: width of the states.
        vocabulary: entries of the head.
        chunk: tokens that the differentiating references take at a time, as their memory demands.
        repeats: of what is quick.
        slow_repeats: of references that take long.
        memory_tokens: two numbers of tokens between which memory must not grow; on a GPU only the larger is held.
        fp64_tokens: tokens of the FP64 path.
        cells: of the FP64 path; one less than its nodes.
        error_tokens: of the accuracy rows; a ragged number.
        error_vocabulary: of the accuracy rows; a ragged number.
        huginn: of the nonlinear readout.
        judged: whether goals are held against these sizes.
    """

    tokens: int
    hidden: int
    vocabulary: int
    chunk: int
    repeats: int
    slow_repeats: int
    memory_tokens: tuple[int, int]
    fp64_tokens: int
    cells: int
    error_tokens: int
    error_vocabulary: int
    huginn: HuginnSizes
    judged: bool = True


CUDA = Sizes(
    tokens=4096,
    hidden=2048,
    vocabulary=49_152,
    chunk=1024,
    repeats=20,
    slow_repeats=3,
    memory_tokens=(4096, 65_536),
    fp64_tokens=1024,
    cells=256,
    error_tokens=997,
    error_vocabulary=50_021,
    huginn=HuginnSizes(hidden=5280, heads=55, inner=17_920, vocabulary=65_536, rows=4, positions=256),
)
CPU = replace(
    CUDA,
    tokens=256,
    chunk=128,
    repeats=5,
    memory_tokens=(256, 1024),
    fp64_tokens=64,
    error_tokens=61,
    huginn=HuginnSizes(hidden=1056, heads=11, inner=3584, vocabulary=65_536, rows=2, positions=32),
)
QUICK = Sizes(
    tokens=9,
    hidden=32,
    vocabulary=999,
    chunk=4,
    repeats=2,
    slow_repeats=1,
    memory_tokens=(4, 16),
    fp64_tokens=3,
    cells=16,
    error_tokens=7,
    error_vocabulary=501,
    huginn=HuginnSizes(hidden=48, heads=2, inner=64, vocabulary=301, rows=2, positions=5),
    judged=False,
)


def sizes_for(device: str, *, quick: bool) -> Sizes:
    """Those of a kind of device."""
    if quick:
        return QUICK
    return CUDA if device == "cuda" else CPU


OURO_SHAPE: dict[str, Any] = {
    "vocab_size": 49152,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 128,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
    "total_ut_steps": 4,
}
"""Of Ouro-1.4B's configuration."""

FLAT, TYPICAL, PEAKED = 0.9, 7.2, 27.0
"""Standard deviations of a token's logits: entropies of about 10, 2 and less than 0.1 nats at 50,000 entries."""
STEP, SMALL_STEP = 0.3, 0.01
_ROWS = 1024  # drawn at a time, so that making the data leaves no peak of memory behind


@dataclass(frozen=True)
class Update:
    """Two states at the reference tokens, the head that reads them, and the reference labels."""

    h_TD: Tensor
    h_plus_TD: Tensor
    weight_VD: Tensor
    targets_T: Tensor

    @property
    def size(self) -> dict[str, int]:
        """Tokens, width and vocabulary."""
        tokens, hidden = self.h_TD.shape
        return {"tokens": tokens, "hidden": hidden, "vocabulary": self.weight_VD.shape[0]}


def random_update(
    tokens: int,
    hidden: int,
    vocabulary: int,
    device: torch.device,
    *,
    spread: float = TYPICAL,
    step: float = STEP,
    seed: int = 0,
) -> Update:
    """H of unit RMS, H⁺ = H + step · noise of unit RMS again, a head whose logits spread as asked, random labels."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(rows: int) -> Tensor:
        return torch.randn(rows, hidden, device=device, generator=generator)

    h_TD, h_plus_TD, weight_VD = (
        torch.empty(rows, hidden, device=device, dtype=torch.bfloat16) for rows in (tokens, tokens, vocabulary)
    )
    for rows in blocks(tokens, _ROWS):
        count = rows.stop - rows.start
        h_TD[rows] = _unit(normal(count))
        h_plus_TD[rows] = _unit(h_TD[rows].float() + step * normal(count))
    for rows in blocks(vocabulary, _ROWS):
        weight_VD[rows] = normal(rows.stop - rows.start) * (spread / hidden**0.5)
    targets_T = torch.randint(vocabulary, (tokens,), device=device, generator=generator)
    return Update(h_TD, h_plus_TD, weight_VD, targets_T)


def following(update: Update, seed: int) -> Update:
    """An update of the same tokens that starts where this one ends."""
    h_TD = update.h_plus_TD
    noise_TD = torch.randn(h_TD.shape, device=h_TD.device, generator=torch.Generator(h_TD.device).manual_seed(seed))
    return replace(update, h_TD=h_TD, h_plus_TD=_unit(h_TD.float() + STEP * noise_TD).to(h_TD.dtype))


def with_likely_targets(update: Update) -> Update:
    """Every second label becomes the one that H⁺ makes likeliest: references that are nearly certain, and others."""
    best_T = torch.full_like(update.targets_T, 0)
    value_T = torch.full(best_T.shape, -torch.inf, device=best_T.device)
    for columns in blocks(update.weight_VD.shape[0], _ROWS):
        z_Tb = update.h_plus_TD.float() @ update.weight_VD[columns].float().T
        top = z_Tb.max(1)
        best_T = torch.where(top.values > value_T, top.indices + columns.start, best_T)
        value_T = torch.maximum(value_T, top.values)
    even_T = torch.arange(best_T.shape[0], device=best_T.device) % 2 == 0
    return replace(update, targets_T=torch.where(even_T, best_T, update.targets_T))


def _unit(rows: Tensor) -> Tensor:
    return rows / rows.square().mean(1, keepdim=True).sqrt()
