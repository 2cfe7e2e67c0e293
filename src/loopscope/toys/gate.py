"""Trains Ouro's exit gate after everything else, which stays as it is.

Where the loss weighs the loops by fixed numbers, the gate has had no part in it. Here it alone minimises Ouro's
expected loss over its exits, less β times their entropy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from loopscope.models.families.ouro import Ouro
from loopscope.toys.data import Place, Rows
from loopscope.toys.objective import Loss, Supervised, ouro_loss

RATE = 0.02
"""The learning rate at the first step; it comes down to zero at the last."""


class Supervisor(Protocol):
    """What the trainer lends: rows as tensors on its device, and its arithmetic."""

    def supervise_rows(self, rows: Rows) -> Supervised:
        """A batch and what is asked of it."""

    def arithmetic(self) -> AbstractContextManager[Any]:
        """The context in which losses are computed."""


def train_gate(
    model: Ouro, batches: Iterator[tuple[Rows, Place]], supervisor: Supervisor, steps: int, entropy_weight: float
) -> Loss:
    """Some steps on the gate alone, through blocks that are not compiled; the loss of the last."""
    gate = model.model.early_exit_gate
    model.requires_grad_(False)
    gate.requires_grad_(True)
    optimiser = torch.optim.AdamW(gate.parameters(), RATE, weight_decay=0.0)
    try:
        for step in range(steps):
            optimiser.param_groups[0]["lr"] = RATE * (1 - step / steps)
            rows, _ = next(batches)
            with supervisor.arithmetic():
                loss = ouro_loss(model, supervisor.supervise_rows(rows), entropy_weight)
            optimiser.zero_grad(set_to_none=True)
            loss.total.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    finally:
        model.requires_grad_(True)
    return loss
