"""Shared by the families' tests: how far states and logits are from the published code's."""

from __future__ import annotations

import pytest
import torch

from loopscope.models.batch import Batch
from loopscope.models.walk import Walk

STATES = {"raw": "state", "z_H": "state", "z_L": "carry"}


@pytest.fixture(scope="session")
def distance():
    """The largest difference over all depths, as a multiple of what is allowed: 1e-4, or 5e-6 of the largest entry."""

    def off(found, expected, mask):
        allowed = max(1e-4, 5e-6 * expected[mask].abs().max().item())
        return (found - expected)[mask].abs().max().item() / allowed

    @torch.no_grad()
    def largest(model, expected, *, depths=range(1, 7), prompt_lengths=None):
        mask = expected.attention_mask
        walk, found = Walk.of(model, Batch(expected.input_ids, mask, prompt_lengths=prompt_lengths)), []
        for t in depths:
            walk.to(t)
            found.append(off(walk.read(), expected.logits[t - 1], mask))
            held = [(name, kind) for name, kind in STATES.items() if name in expected.tensors]
            found += [off(getattr(walk, kind), expected.tensors[name][t - 1], mask) for name, kind in held]
        return max(found)

    return largest


@pytest.fixture(scope="session")
def roundings():
    """Whether states and logits are off by a few roundings to BF16 in norm: after one loop, and after four.

    Every loop amplifies what the one before rounded away, some texts more than others.
    """

    @torch.no_grad()
    def few(model, expected, *, prompt_lengths=None):
        batch = Batch(expected.input_ids, expected.attention_mask, prompt_lengths=prompt_lengths)
        walk, found = Walk.of(model, batch), []
        for t in range(1, 5):
            walk.to(t)
            held = next(name for name in STATES if name in expected.tensors)
            for made, wanted in ((walk.state, expected.tensors[held]), (walk.read(), expected.logits)):
                assert made.dtype == torch.bfloat16
                error = (made.float() - wanted[t - 1])[expected.attention_mask]
                found.append((error.norm() / wanted[t - 1][expected.attention_mask].norm()).item() * 2**8)
        return 0.5 < max(found[:2]) < 5 and max(found) < 12

    return few
