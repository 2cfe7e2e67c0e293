"""Small updates on the CPU, and the benchmark at its test size, run once."""

from __future__ import annotations

import json
import pickle

import pytest
import torch

from loopscope.bench.benchmark import run_bench
from loopscope.bench.row import Setting
from loopscope.bench.sizes import QUICK, random_update, with_likely_targets


@pytest.fixture
def setting() -> Setting:
    return Setting(torch.device("cpu"), QUICK)


@pytest.fixture
def update():
    return with_likely_targets(random_update(11, 24, 301, torch.device("cpu"), seed=5))


@pytest.fixture(scope="session")
def quick_report(made_once):
    def fill(folder):
        report = run_bench("cpu", quick=True, output=str(folder / "new" / "bench.json"), progress=False)
        (folder / "report.pickle").write_bytes(pickle.dumps(report))

    folder = made_once("bench", fill)
    written = json.loads((folder / "new" / "bench.json").read_text(encoding="utf-8"))
    return pickle.loads((folder / "report.pickle").read_bytes()), written
