"""The benchmark's plain loops are a second implementation: hold the two together on every run."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "path_bench.py"

if not SCRIPT.exists():
    pytest.skip("the benchmark script is not beside the tests", allow_module_level=True)

spec = importlib.util.spec_from_file_location("path_bench", SCRIPT)
bench = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bench)


@pytest.mark.parametrize("row", bench.ROWS, ids=lambda row: row.name)
def test_plain_loops_agree_with_the_vectorised_functions(row):
    updates = bench.make_updates(300)
    line = bench.measure(row, updates, subset=300, repeat=1)
    assert line.difference < 1e-13
