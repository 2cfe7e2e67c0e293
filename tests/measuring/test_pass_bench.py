"""The benchmark of a whole pass runs from beginning to end at its smoke-test size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "pass_bench.py"
BARE = """
import runpy, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("polars", "typer", "rich", "matplotlib", "huggingface_hub"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


def test_the_smoke_test_times_a_pass_and_its_parts(tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    done = subprocess.run(
        # Without what a pass does not need: a machine with an accelerator may have little else.
        [sys.executable, "-c", BARE, str(SCRIPT), "--tiny", "--device", "cpu", "--output", str(output)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(output.read_text())["pass"]
    assert found["questions"] == 8
    assert len(found["seconds"]["bare"]) == len(found["seconds"]["pass"]) == 2
    assert {"forward", "survey", "own scale", "rounded", "diagnostics", "gate", "scalar checks"} <= set(
        found["parts"]["host"]
    )
    assert {"encode", "launch", "finish", "commit"} <= set(found["parts"]["host"])
    assert "| whole pass | " in done.stdout
