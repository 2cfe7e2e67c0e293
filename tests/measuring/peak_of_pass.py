"""A pass over so many questions with a small random model in BF16, in a process of its own; prints its peak in MiB."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from loopscope.api import measure_with as measure
from loopscope.models.registry import find_published

_OURO = find_published("ouro-1.4b")
assert _OURO
TINY = dict(_OURO.config) | {
    "num_hidden_layers": 2,
    "vocab_size": 1024,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
}

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
        model_args={"random_weights": True},
        tokenizer="toy-ouro",
        device="cpu",
        dtype="bfloat16",
    )
    status = Path("/proc/self/status").read_text()
    print(float(status.partition("VmHWM:")[2].split()[0]) / 1024)
