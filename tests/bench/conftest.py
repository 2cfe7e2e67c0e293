"""Small updates on the CPU, and the benchmark at its test size, run once."""

from __future__ import annotations

import json

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
def quick_report(tmp_path_factory):
    output = tmp_path_factory.mktemp("bench") / "new" / "bench.json"
    report = run_bench("cpu", quick=True, output=str(output), progress=False)
    return report, json.loads(output.read_text(encoding="utf-8"))
