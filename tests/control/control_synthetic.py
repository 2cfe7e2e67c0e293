"""Traces from random states, made with the formulas of the signals; and large ones of random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from loopscope.control.act import live as live_signals
from loopscope.control.policies import CHANGE_SIGNALS, LOGIT_SIGNALS, STATE_SIGNALS, Seen


class Made:
    """Random states of R positions at depths 0 … T under a random head, and their trace."""

    def __init__(self, questions: int = 5, tokens: int = 7, loops: int = 6, seed: int = 0, options: int = 1) -> None:
        generator = torch.Generator().manual_seed(seed)
        rows, width, vocabulary = questions * tokens * options, 8, 13

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.loops, self.tokens, self.options = loops, tokens, options
        self.weight_VD = normal(vocabulary, width)
        steps = [normal(rows, width) * 0.7**t for t in range(loops + 1)]
        self.states = list(torch.cumsum(torch.stack(steps), dim=0))
        self.gates = [torch.rand(rows, generator=generator, dtype=torch.float64) * 0.6 for _ in range(loops + 1)]
        self.targets = torch.randint(vocabulary, (rows,), generator=generator)

    def logits(self, depth: int) -> Tensor:
        return self.states[depth] @ self.weight_VD.T

    def at(self, depth: int) -> Seen:
        states = [self.states[t] for t in range(depth, max(depth - 3, -1), -1)]
        return live_signals(depth, states, self.logits, self.gates[depth])

    def log_prob(self, depth: int, scale: float = 1.0) -> Tensor:
        before = self.logits(depth - 1) if scale != 1 else self.logits(depth)
        z = before + scale * (self.logits(depth) - before)
        return z.log_softmax(-1).gather(1, self.targets[:, None])[:, 0]

    def frame(self) -> pl.DataFrame:
        rows = len(self.targets)
        place = np.arange(rows)
        parts = []
        for depth in range(1, self.loops + 1):
            live = self.at(depth)
            columns: dict[str, Any] = {name: live.signal(name).numpy() for name in (*STATE_SIGNALS, *LOGIT_SIGNALS)}
            columns |= {name: live.signal(name).numpy() for name in CHANGE_SIGNALS}
            if depth == 1:
                columns |= {name: [None] * rows for name in CHANGE_SIGNALS}
            v = self.logits(depth) - self.logits(depth - 1)
            inside = depth > 1
            columns |= {
                "gate": self.gates[depth].numpy(),
                "log_prob": self.log_prob(depth).numpy(),
                "v_reference": v.gather(1, self.targets[:, None])[:, 0].numpy(),
                **{
                    f"gain_{percent}": (self.log_prob(depth, percent / 100) - self.log_prob(depth - 1)).numpy()
                    if inside
                    else [None] * rows
                    for percent in (25, 50, 75)
                },
            }
            parts.append(
                pl.DataFrame(
                    {
                        "row": place // (self.tokens * self.options),
                        "example_id": [f"q{i // (self.tokens * self.options)}" for i in place],
                        "option": place // self.tokens % self.options,
                        "token": place % self.tokens,
                        "token_id": self.targets.numpy(),
                        "depth": np.full(rows, depth),
                        **columns,
                    },
                    strict=False,
                ).with_columns(pl.col(*CHANGE_SIGNALS, "gain_25", "gain_50", "gain_75").cast(pl.Float64))
            )
        return pl.concat(parts, how="diagonal_relaxed")
