"""A process of its own that makes an update, asks for its geometry once, and prints how far its memory rose:
`python -m loopscope.bench.memory_probe survey 1024 2048 49152`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from loopscope.bench.geometry import survey
from loopscope.bench.memory import MIB
from loopscope.bench.paper_way import PaperWay
from loopscope.bench.updates import random_update


def peak_mib() -> float:
    """The most memory this process has held.

    Linux keeps that mark for the memory of this program alone. `getrusage` would also count what the process that
    started it had held.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return float(line.split()[1]) * 1024.0 / MIB
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / MIB if sys.platform == "darwin" else peak * 1024.0 / MIB


def main() -> int:
    """What, tokens, width and vocabulary on the command line; one JSON object on stdout."""
    what, *numbers = sys.argv[1:]
    tokens, hidden, vocabulary = map(int, numbers)
    update = random_update(tokens, hidden, vocabulary, torch.device("cpu"))
    held = peak_mib()
    if what == "survey":
        survey(update)
    else:
        paper = PaperWay(update, tokens)
        held = max(held, peak_mib())  # the converted head counts as held
        paper.differentiated()
    print(json.dumps({"held_mib": held, "extra_mib": peak_mib() - held}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
