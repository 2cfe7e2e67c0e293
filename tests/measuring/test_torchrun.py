"""Two processes of a real torchrun measure one run: the bytes of one process, and a killed one loses nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from loopscope.run import Run


def measure(model: str, folder: Path, processes: int) -> subprocess.CompletedProcess[str]:
    words = f"measure --model {model} --tasks arithmetic --limit 10 --batch-size 1 --level quick"
    words += " --protocol loopscope:unit_size=2 --transitions 1-2 --device cpu --progress none --output run"
    folder.mkdir(exist_ok=True)
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    return subprocess.run(
        [sys.executable, *start, "-m", "loopscope", *words.split()],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
def test_a_killed_process_of_two_loses_nothing(
    tmp_path: Path, contents: Callable[[Path], dict[str, bytes]], dying: tuple[str, Path]
) -> None:
    """Rows 4 and 5 are the third unit, the second one of process 0, which ends itself there the first time."""
    model, fuse = dying
    fuse.touch()
    killed = measure(model, tmp_path / "two", 2)
    assert killed.returncode != 0
    assert not fuse.exists()
    two, one = tmp_path / "two" / "run", tmp_path / "one" / "run"
    stored = {path: path.stat().st_mtime_ns for path in (two / "units").glob("*.json")}
    assert len(stored) < 5
    resumed = measure(model, two.parent, 2)
    assert resumed.returncode == 0, resumed.stderr[-3000:]
    assert resumed.stdout.count("Next: loopscope tables") == 1
    assert {path: path.stat().st_mtime_ns for path in stored} == stored
    alone = measure(model, one.parent, 1)
    assert alone.returncode == 0, alone.stderr[-3000:]
    assert contents(two) == contents(one)
    assert Run(two).finished
    assert [event["event"] for event in Run(two).events].count("call") == 2, "of process 0, each time"
