"""Choosing the next token: the likeliest, or one drawn with temperature, top-k and top-p.

Every row draws from a stream of its own (seed and row), in float64, by inverting the distribution function: what
a row draws does not depend on the rows beside it.

Shapes: B rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loopscope._errors import LoopscopeError


@dataclass(frozen=True)
class Sampler:
    """Temperature 0 takes the likeliest token (ties: the lowest id).

    Attributes:
        temperature: divides the logits.
        top_k: keeps the k likeliest tokens.
        top_p: keeps the likeliest tokens until their probabilities reach p.
        seed: of the rows' streams.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise LoopscopeError(f"temperature must be at least 0 and finite, not {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise LoopscopeError(f"top_k must be at least 1, not {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise LoopscopeError(f"top_p must be above 0 and at most 1, not {self.top_p}")

    def uniforms(self, rows: int, count: int) -> Tensor:
        """[rows, count] float64: what each row will draw with, on the CPU."""
        streams = [torch.Generator().manual_seed(self.seed + row) for row in range(rows)]
        return torch.stack([torch.rand(count, dtype=torch.float64, generator=stream) for stream in streams])

    def choose(self, logits_BV: Tensor, uniform_B: Tensor) -> Tensor:
        """The next token of every row, [B] int64."""
        if self.temperature == 0:
            return logits_BV.argmax(dim=-1)
        probability, token = torch.softmax(logits_BV.double() / self.temperature, dim=-1).sort(
            dim=-1, descending=True, stable=True
        )
        if self.top_k is not None:
            probability[:, self.top_k :] = 0
            probability /= probability.sum(dim=-1, keepdim=True)
        if self.top_p is not None:
            before = probability.cumsum(dim=-1) - probability
            probability[before >= self.top_p] = 0
        reached = probability.cumsum(dim=-1)
        target = uniform_B.to(logits_BV.device)[:, None] * reached[:, -1:]
        # Zero-probability tails share the last value of `reached`; the target never exceeds it.
        index = torch.searchsorted(reached, target, right=True).clamp(max=token.shape[-1] - 1)
        kept = (probability > 0).sum(dim=-1, keepdim=True) - 1
        return token.gather(-1, torch.minimum(index, kept))[:, 0]
