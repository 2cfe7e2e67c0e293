"""A pass over so many questions with a small random model in BF16, in a process of its own; prints its peak in MiB."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from loopscope.api import measure
from loopscope.bench.clock import peak_mib
from loopscope.bench.whole_pass import TINY

if __name__ == "__main__":
    questions, folder = int(sys.argv[1]), Path(sys.argv[2])
    model = folder / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(TINY))
    measure(
        str(model),
        ["arithmetic"],
        output=folder / "run",
        transitions=[1],
        level="quick",
        limit=questions,
        random_weights=True,
        tokenizer="toy-ouro",
        device="cpu",
        dtype="bfloat16",
    )
    print(peak_mib())
