"""The smallest kernel: whether Triton can compile and launch anything here."""

from __future__ import annotations

import torch

from loopscope.triton_kernels.language import Value, constexpr, jit, launch, tl


def probe(device: torch.device) -> None:
    """Runs it; whatever is in the way is raised."""
    out = torch.zeros(32, device=device)
    launch(_probe, (1,), out, out, BLOCK=32)
    torch.cuda.synchronize(device)


@jit
def _probe(out: Value, BLOCK: constexpr) -> None:
    tl.store(out + tl.arange(0, BLOCK), 1.0)
