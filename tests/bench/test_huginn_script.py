"""The benchmark of Huginn's readout runs from beginning to end at its smoke-test size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "huginn_readout.py"


def test_the_smoke_test_prints_a_table_and_writes_its_numbers(tmp_path):
    output = tmp_path / "bench.json"
    done = subprocess.run(
        [sys.executable, SCRIPT, "--tiny", "--products", "--device", "cpu", "--output", output],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(output.read_text())
    assert len(report["rows"]) == 8
    for row in report["rows"]:
        assert all(error < 1e-4 for error in row["errors"].values()), row
    assert {product["matrix"] for product in report["products"]} == {"gate and up", "down", "head"}
    assert not any("failed" in product for product in report["products"])
    assert "| A, Q, φ''' by Taylor mode, split products | " in done.stdout
