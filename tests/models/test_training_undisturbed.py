"""Wrapping and watching a model changes nothing in its training: weights, optimiser and random streams, to the bit."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import loopscope as ls

WIDTH, VOCABULARY, STEPS = 8, 32, 100


class Looped(nn.Module):
    """With dropout, and with buffers that count and average what it sees in training."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.turn, self.out = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 32)
        self.drop, self.norm = nn.Dropout(0.3), nn.BatchNorm1d(WIDTH)
        self.register_buffer("calls", torch.zeros(()))

    def step(self, h: torch.Tensor) -> torch.Tensor:
        self.calls += 1  # also in evaluation mode
        normed = self.norm(h.reshape(-1, WIDTH)).reshape(h.shape)
        return h + self.drop(torch.tanh(self.turn(normed)))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.words(ids)
        for _ in range(3):
            h = self.step(h)
        return self.out(h)


def _trained(watched: str, log: Path) -> tuple[Any, ...]:
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    torch.manual_seed(3)
    model = Looped()
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    monitor = None
    for step in range(STEPS):
        if watched and step == 50:
            looped = ls.wrap(embed=model.words, step=model.step, readout=model.out, trained_depth=3)
            if watched == "monitor":
                task = ls.Task.from_ids([[1, 2], [3]], [[4], [5, 6]])
                monitor = ls.Monitor(looped, task, log=str(log), transitions=[3], every=10)
        ids = torch.randint(VOCABULARY, (4, 6))
        loss = functional.cross_entropy(model(ids)[:, :-1].reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if monitor is not None:
            monitor.step(step)
    streams = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())  # noqa: NPY002
    flags = [weight.requires_grad for weight in model.parameters()], [module.training for module in model.modules()]
    return model.state_dict(), optimiser.state_dict(), streams, flags


@pytest.mark.parametrize("watched", ["wrap", "monitor"])
def test_a_training_goes_on_to_the_bit(watched: str, tmp_path: Path) -> None:
    plain, seen = _trained("", tmp_path / "no"), _trained(watched, tmp_path / "log.jsonl")
    if watched == "monitor":
        assert (tmp_path / "log.jsonl").stat().st_size > 100
    for name, value in plain[0].items():
        assert torch.equal(value, seen[0][name]), name
    for one, other in zip(plain[1]["state"].values(), seen[1]["state"].values(), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert torch.equal(plain[2][0], seen[2][0])
    assert plain[2][1:] == seen[2][1:]
    assert plain[3] == seen[3]
