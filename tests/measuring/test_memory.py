"""Out of memory: a refused allocation halves the batch for good, and the numbers stay what they were."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from loopscope.errors import LoopscopeError
from loopscope.measuring.readouts import AffineReadout
from loopscope.store import StoredRun


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc to limit the address space")
def test_refused_allocation_halves_the_batch_for_good(checkpoint: Callable[[str], str], tmp_path: Path) -> None:
    script = Path(__file__).with_name("short_of_memory.py")
    result = subprocess.run(
        [sys.executable, str(script), checkpoint("huginn"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        # Large blocks are mapped anew and given back: what an earlier measurement freed cannot serve this one.
        env={**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "1048576"},
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["said"], "no allocation was refused"
    assert all("out of memory" in line for line in found["said"])
    plenty, short = StoredRun(tmp_path / "plenty"), StoredRun(tmp_path / f"short-{found['megabytes']}")
    # Whether the first unit meets the limit or the second depends on the allocator; that it was met must be told.
    told = [event["message"] for event in short.events if event["event"] == "notice"]
    assert told == found["said"], "every refusal is on record"
    for name in ("utility_before", "gain", "slope", "quadratic"):
        np.testing.assert_allclose(short.records[name], plenty.records[name], rtol=1e-4, atol=1e-6)


def test_single_question_that_does_not_fit_is_named(
    measured: Callable[..., StoredRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        torch.empty(1 << 60, dtype=torch.uint8)

    monkeypatch.setattr(AffineReadout, "paths", refuse)
    with pytest.raises(LoopscopeError, match="alone does not fit into memory"):
        measured("ouro", "arithmetic", limit=2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_refusal_halves_the_batch(checkpoint: Callable[[str], str], tmp_path: Path) -> None:
    from loopscope.api import measure_with as measure

    said: list[str] = []
    torch.cuda.empty_cache()  # what earlier tests left cached would not have to be allocated
    torch.cuda.set_per_process_memory_fraction(0.002)
    try:
        run = measure(
            checkpoint("huginn"),
            ["arithmetic"],
            output=tmp_path / "run",
            transitions=[1],
            limit=512,
            unit_size=512,
            batch_size="512",
            device="cuda",
            notify=said.append,
        )
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert said
    assert run.finished
