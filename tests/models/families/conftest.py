"""Shared by the families' tests: the published code's outputs on tiny checkpoints, and how far a model is from them."""

from __future__ import annotations

import pytest
import torch

from loopscope.models.batch import Batch
from loopscope.models.walk import Walk

STATES = {"hidden": "state", "raw": "state", "z_H": "state", "z_L": "carry"}


@pytest.fixture(scope="session")
def distance():
    """The largest difference of states and logits over all depths, relative to the largest entry of each."""

    def off(found, expected, mask):
        return ((found - expected)[mask].abs().max() / expected[mask].abs().max()).item()

    def largest(model, expected, *, initial=None, everything=False, prompt_lengths=None):
        tensors = expected.tensors
        mask = torch.ones_like(expected.attention_mask) if everything else expected.attention_mask
        batch = Batch(
            expected.input_ids,
            mask,
            tensors.get("position_ids"),
            initial_state=initial,
            prompt_lengths=prompt_lengths,
        )
        held = [(tensors[name], kind) for name, kind in STATES.items() if name in tensors]
        logits = dict(zip(expected.depths, expected.logits, strict=False)) if expected.logits.dim() == 4 else {}
        walk, found = Walk.of(model, batch), []
        for depth in range(1, len(expected.logits if logits else held[0][0]) + 1):
            walk.to(depth)
            found += [off(getattr(walk, kind), states[depth - 1], mask) for states, kind in held]
            if depth in logits:
                found.append(off(walk.read(), logits[depth], mask))
        return max(found)

    return largest
