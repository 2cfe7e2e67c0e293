"""The benchmark script runs from beginning to end at its smoke-test size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "models_bench.py"


def test_the_smoke_test_prints_a_table_and_writes_its_numbers(tmp_path):
    output = tmp_path / "bench.json"
    done = subprocess.run(
        [sys.executable, SCRIPT, "--tiny", "--device", "cpu", "--output", output], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(output.read_text())
    assert report["ouro"]["relative_difference_one_loop"] < 0.02
    assert report["huginn"]["finite"]
    assert not report["ouro"]["kernels"]
    assert set(report["ouro"]["seconds"]) == {"loopscope", "loopscope, plain torch", "bare"}
    assert "| loopscope | " in done.stdout
    assert "| 20 steps | " in done.stdout
