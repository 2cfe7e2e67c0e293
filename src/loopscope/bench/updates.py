"""Random updates that look like a looped model's: BF16 states of unit RMS, a BF16 head, softmaxes flat to peaked.

Shapes: T reference tokens, D hidden width, V vocabulary entries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from loopscope.readout.affine.sources import blocks

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
