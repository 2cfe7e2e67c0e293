"""Drawn initial states: a truncated normal, seeded by question (Appendix B, "Execution and differentiation").

    H_0 = scale · TruncatedNormal(0, std; ±3 std),   drawn on the CPU, BF16, seed 20260904 + source row

Rule "question" (the default) draws by inverting the distribution function at uniform numbers, one number an
entry, position by position, in float32, and rounds the state to BF16 (BF16 uniforms would shift its mean).
Position p of a row therefore depends on the seed and p alone: not on the padding, the batch or the length of the
sequence. All options of a question share the states of their common positions, and a token that is generated
gets the state it would have had in a prompt. Torch's own `trunc_normal_` rejects and redraws in recent versions,
which would tie every position to the width of the tensor.

Rule "paper" is the paper's sentence taken literally: `trunc_normal_` fills a BF16 tensor of the sequence's shape.
Rule "official" follows the published code's calls: a standard normal tensor of that shape is drawn and thrown
away first. Under both, values depend on the sequence's length (without padding) and on the version of torch, so
that options of a question share their seed and not their states.

Shapes: B rows, S positions, D hidden width.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from loopscope.errors import LoopscopeError
from loopscope.models.base import LoopedModule
from loopscope.models.batch import Batch

SEED = 20260904
_CUT = 3.0
_WORKERS = min(8, os.cpu_count() or 1)

Rule = Literal["question", "paper", "official"]
RULES: tuple[Rule, ...] = get_args(Rule)


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
        longest = max(lengths)
        # Under "question" a longer draw begins with the shorter one: one draw serves all options.
        reach = [longest] * len(lengths) if self.rule == "question" else lengths
        keys = list(zip(source_rows, reach, strict=True))
        distinct = list(dict.fromkeys(keys))
        with ThreadPoolExecutor(min(_WORKERS, len(distinct))) as pool:
            drawn = dict(zip(distinct, pool.map(lambda key: self._draw_row(*key), distinct), strict=True))
        state = torch.zeros(len(lengths), longest, self.width, dtype=self.dtype)
        for index, (key, length) in enumerate(zip(keys, lengths, strict=True)):
            state[index, :length] = drawn[key][:length]
        return state

    def _draw_row(self, row: int, length: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed + row)
        shape = (length, self.width)
        if self.rule != "question":
            if self.rule == "official":
                torch.randn(shape, dtype=self.dtype, generator=generator)
            state = torch.empty(shape, dtype=self.dtype)
            bound = _CUT * self.std
            return nn.init.trunc_normal_(state, 0.0, self.std, -bound, bound, generator=generator).mul_(self.scale)
        reach = math.erf(_CUT / math.sqrt(2.0))
        uniform = torch.empty(shape, dtype=torch.float32).uniform_(-reach, reach, generator=generator)
        bound = _CUT * self.std * self.scale
        return uniform.erfinv_().mul_(self.std * self.scale * math.sqrt(2.0)).clamp_(-bound, bound).to(self.dtype)


class DrawsState(LoopedModule):
    """A model whose H_0 is drawn, as its attribute `initial_state` says."""

    initial_state: InitialState
    draws = True
    """Whether H_0 is what is drawn; a family may draw something else that its steps carry along."""

    def draw_initial_state(self, source_rows: Sequence[int], lengths: Sequence[int], width: int) -> Tensor:
        """H_0 for rows of the given lengths, [B, width, D] on the model's device; zero at padding."""
        drawn = self.initial_state.draw(source_rows, lengths)
        padded = functional.pad(drawn, (0, 0, 0, width - drawn.shape[1]))
        if self.device.type == "cuda":
            padded = padded.pin_memory()  # so that nobody waits for what the device does meanwhile
        return padded.to(self.device, non_blocking=True).to(self.dtype)

    def drawn(self, batch: Batch) -> Tensor:
        """H_0 of a batch, [B, S, D]."""
        parts = batch.parts
        lengths = batch.attention_mask.sum(dim=1).tolist() if parts is None else parts.lengths
        rows = batch.source_rows if batch.source_rows is not None else [0] * len(lengths)
        if parts is None:
            return self.draw_initial_state(rows, lengths, batch.input_ids.shape[1])
        if parts.places is not None and (rule := self.initial_state.rule) != "question":
            raise LoopscopeError(f'the rule "{rule}" draws a sequence by its length; run sequences one to a row')
        assert batch.position_ids is not None
        assert batch.reach is not None
        counted = self.draw_initial_state(rows, lengths, batch.reach)
        return counted[parts.owner_1N.to(self.device), batch.position_ids.to(self.device)]
