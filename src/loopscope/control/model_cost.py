"""What loops and readouts of a model at hand cost, from the multiplications that one token takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from loopscope.control.cost import Costs
from loopscope.models.batch import Batch
from loopscope.models.protocol import LoopedModel
from loopscope.models.walk import Walk


@torch.no_grad()
def costs_of(model: LoopedModel) -> Costs:
    """Counted over one token: what `embed` and `readout` take, over what `step` takes."""
    batch = Batch.from_rows([[0]]).to(model.device)
    embedded, walk = _counted(lambda: Walk.of(model, batch))
    stepped, _ = _counted(walk.advance)
    position = torch.zeros((1, 2), dtype=torch.int64, device=model.device)
    read, _ = _counted(lambda: walk.read(position))
    if not stepped:
        return Costs()
    return Costs((embedded + read) / stepped, read / stepped)


def _counted(call: Callable[[], Any]) -> tuple[int, Any]:
    with FlopCounterMode(display=False) as counter:
        made = call()
    return counter.get_total_flops(), made
