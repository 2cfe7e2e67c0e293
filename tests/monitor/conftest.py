"""A small looped model that is trained in a second: dropout, an affine head or one behind a norm."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import loopscope as ls

VOCABULARY, WIDTH = 48, 16


class Small(ls.LoopedModule):
    """Attention is left out: a running mean over the positions before takes its place."""

    name, family, trained_depth, max_positions = "small", "small", 2, 64

    def __init__(self, *, affine: bool = True) -> None:
        super().__init__()
        self.vocabulary_size, self.hidden_size, self.affine = VOCABULARY, WIDTH, affine
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.mix, self.up, self.down = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.drop, self.norm = nn.Dropout(0.1), nn.LayerNorm(WIDTH)
        self.unembed = nn.Linear(WIDTH, VOCABULARY)

    @property
    def head(self):
        return ls.AffineHead(self.unembed.weight, self.unembed.bias) if self.affine else None

    def embed(self, batch):
        self.check_batch(batch)
        batch = batch.to(self.device)
        return ls.Context(self.words(batch.input_ids), batch)

    def step(self, state, context):
        places = torch.arange(1, state.shape[1] + 1, device=state.device)
        seen = self.mix(state).cumsum(1) / places.unsqueeze(-1)
        return self.norm(state + self.drop(self.down(torch.tanh(self.up(state) + seen))))

    def readout(self, state, positions=None, dtype=None):
        if positions is not None:
            state = state[positions[:, 0], positions[:, 1]]
        norm, unembed = self.in_dtype(nn.ModuleList([self.norm, self.unembed]), dtype)
        state = state.to(unembed.weight.dtype)
        return unembed(state if self.affine else norm(torch.tanh(state)))

    def loss(self, ids):
        walk = ls.Walk.of(self, ls.Batch.of(ids)).to(self.trained_depth)
        return nn.functional.cross_entropy(walk.read()[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


@pytest.fixture
def small() -> Callable[..., Small]:
    """`small(affine=False)`: a fresh model, the same every time."""

    def make(*, affine: bool = True) -> Small:
        torch.manual_seed(0)
        return Small(affine=affine)

    return make


@pytest.fixture
def rows() -> torch.Tensor:
    """Held-out rows of ids, the same every time."""
    return torch.randint(0, VOCABULARY, (12, 9), generator=torch.Generator().manual_seed(7))


@pytest.fixture
def task(rows: torch.Tensor) -> ls.Task:
    """The same as questions: three tokens are the prompt, six the reference."""
    ids = rows.tolist()
    return ls.Task.from_ids([row[:3] for row in ids], [row[3:] for row in ids], name="held-out")
