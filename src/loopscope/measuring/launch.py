"""The processes of one `torchrun`: each measures its share of a run's units, on its own GPU, into one directory.

Process 0 opens the run directory before the others and finishes after them. Until then nothing is exchanged: what one
process has committed stays, whatever becomes of the others, and the same command continues.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from functools import cache

import torch
from torch import distributed

from loopscope.errors import LoopscopeError

_LONGEST_PASS = timedelta(days=30)


@dataclass(frozen=True)
class Launch:
    """This process among those of its launch; alone where torchrun did not start it."""

    rank: int = 0
    ranks: int = 1

    def wait(self) -> None:
        """Until every process has come here."""
        if self.ranks > 1:
            try:
                distributed.barrier()
            except RuntimeError as error:
                raise LoopscopeError(
                    "another process of this torchrun has ended: what is stored stays, and the same command continues"
                ) from error


@cache
def this_launch() -> Launch:
    """Read what torchrun says, take this process's GPU and meet the others; a program's own group is left alone."""
    told = {name: os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")}
    if not all(told.values()) or distributed.is_initialized():
        return Launch()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(told["LOCAL_RANK"]) % torch.cuda.device_count())
    launch = Launch(int(told["RANK"]), int(told["WORLD_SIZE"]))
    if launch.ranks > 1:
        distributed.init_process_group("gloo", timeout=_LONGEST_PASS)
    return launch
