"""Memory that a call needs beyond what is held before it.

On a GPU the allocator's own peak. On a CPU the peak of the process, which no call can take back: every figure comes
from a fresh process (`memory_probe`).
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys

import torch

from loopscope.bench.clock import Call

MIB = 2.0**20


def extra_on_gpu(call: Call, device: torch.device) -> float:
    """MiB above what is held, at the highest point of the call."""
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - held) / MIB


def extra_in_fresh_process(what: str, tokens: int, hidden: int, vocabulary: int) -> float:
    """MiB that `memory_probe` needed on top of its states and head."""
    command = [sys.executable, "-m", "loopscope.bench.memory_probe", what, *map(str, (tokens, hidden, vocabulary))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the memory probe failed:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout)
    return found["extra_mib"]
