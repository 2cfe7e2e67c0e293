"""Drawn initial states: a truncated normal, seeded by question (Appendix B, "Execution and differentiation").

    H_0 = scale · TruncatedNormal(0, std; ±3 std),   drawn on the CPU in BF16, seed 20260904 + source row

Rule "question" (the default) draws by inverting the distribution function at uniform numbers, one number an
entry, position by position. Position p of a row therefore depends on the seed and p alone: not on the padding,
the batch or the length of the sequence. All options of a question share the states of their common positions,
and a token that is generated gets the state it would have had in a prompt. Torch's own `trunc_normal_` rejects
and redraws in recent versions, which would tie every position to the width of the tensor.

Rule "official" follows the published code's calls instead: a standard normal tensor of the row's shape is drawn
and thrown away, then `trunc_normal_` fills the state. Its values depend on the row's length (without padding)
and on the version of torch.

Shapes: B rows, S positions, D hidden width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

SEED = 20260904
_CUT = 3.0

Rule = Literal["question", "official"]


@dataclass(frozen=True)
class InitialState:
    """How H_0 is drawn: `std` and `scale` are the model's, rule, seed and dtype the experiment's."""

    width: int
    std: float
    scale: float
    rule: Rule = "question"
    seed: int = SEED
    dtype: torch.dtype = torch.bfloat16

    def draw(self, source_rows: Sequence[int], lengths: Sequence[int]) -> Tensor:
        """H_0 for rows of the given lengths, [B, max(lengths), D] on the CPU; zero beyond a row's length."""
        drawn: dict[tuple[int, int], Tensor] = {}
        longest = max(lengths)
        state = torch.zeros(len(lengths), longest, self.width, dtype=self.dtype)
        for index, (row, length) in enumerate(zip(source_rows, lengths, strict=True)):
            # Under "question" a longer draw begins with the shorter one: one draw serves all options.
            key = (row, longest if self.rule == "question" else length)
            if key not in drawn:
                drawn[key] = self._draw_row(*key)
            state[index, :length] = drawn[key][:length]
        return state

    def _draw_row(self, row: int, length: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed + row)
        state = torch.empty(length, self.width, dtype=self.dtype)
        if self.rule == "official":
            torch.randn(state.shape, dtype=self.dtype, generator=generator)
            nn.init.trunc_normal_(state, 0.0, self.std, -_CUT * self.std, _CUT * self.std, generator=generator)
        else:
            reach = math.erf(_CUT / math.sqrt(2.0))
            state.uniform_(-reach, reach, generator=generator)
            state.erfinv_().mul_(self.std * math.sqrt(2.0)).clamp_(-_CUT * self.std, _CUT * self.std)
        return state.mul_(self.scale)
