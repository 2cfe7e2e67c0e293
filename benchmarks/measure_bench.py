"""Peak memory of a pass against the number of questions: 1,000 and 10,042 HellaSwag questions, a process each.

    python benchmarks/measure_bench.py --data-dir DIR [--counts 1000,10042]

A small random model with the embedded tokenizer measures at level quick; its weights are nothing, so what is seen is
what the pass itself keeps. The last line says by how much the peak grew.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

CONFIG = {
    "architectures": ["OuroForCausalLM"],
    "model_type": "ouro",
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "total_ut_steps": 2,
    "early_exit_threshold": 1.0,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "torch_dtype": "float32",
}


def child(data_dir: str, count: int) -> None:
    from loopscope.api import measure

    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "tiny"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(CONFIG))
        began = time.monotonic()
        run = measure(
            str(model),
            ["hellaswag"],
            output=Path(folder) / "run",
            transitions=[1],
            level="quick",
            limit=count,
            data_dir=data_dir,
            random_weights=True,
            tokenizer="toy-ouro",
            device="cpu",
        )
        seconds = time.monotonic() - began
        written = sum(file.stat().st_size for file in run.path.rglob("*.parquet"))
        rows = sum(shard.rows for record in run.unit_records.values() for shard in record.shards)
    # Kilobytes on Linux, bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    print(json.dumps({"peak": peak, "seconds": seconds, "rows": rows, "written": written}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", required=True, help="folder with hellaswag_val.jsonl.gz")
    parser.add_argument("--counts", default="1000,10042")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        child(given.data_dir, given.child)
        return
    names = ("torch", "numpy", "pyarrow", "tokenizers")
    print(f"{platform.machine()}, {os.cpu_count()} cores, " + ", ".join(f"{name} {version(name)}" for name in names))
    print(f"{'questions':>10} {'peak MiB':>9} {'seconds':>8} {'rows':>8} {'MiB written':>12}")
    peaks = []
    for count in map(int, given.counts.split(",")):
        command = [sys.executable, __file__, "--data-dir", given.data_dir, "--child", str(count)]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
        peaks.append(found["peak"])
        print(
            f"{count:>10} {found['peak'] / 2**20:>9.0f} {found['seconds']:>8.1f} {found['rows']:>8}"
            f" {found['written'] / 2**20:>12.1f}",
            flush=True,
        )
    print(f"peak of the last against the first: {100 * (peaks[-1] / peaks[0] - 1):+.1f}%")


if __name__ == "__main__":
    main()
