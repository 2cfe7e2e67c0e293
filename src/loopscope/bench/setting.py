"""Where a benchmark runs and how large it is; what every row is handed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from loopscope.bench.clock import Clock
from loopscope.bench.sizes import Sizes


@dataclass(frozen=True)
class Setting:
    """The device, its clock and the sizes; for a whole pass also a tokenizer's folder and the benchmarks' one."""

    device: torch.device
    sizes: Sizes
    tokenizer: str | None = None
    data_dir: str | None = None

    @property
    def clock(self) -> Clock:
        """Of the device."""
        return Clock(self.device)

    @property
    def on_gpu(self) -> bool:
        """Whether the device is one of CUDA's."""
        return self.device.type == "cuda"
