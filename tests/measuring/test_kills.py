"""Killed at random points, shards corrupted or deleted: the same command again gives the undisturbed run."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loopscope.store import StoredRun, verify

Contents = Callable[[Path], dict[str, bytes]]
Measure = Callable[..., tuple[int, int]]


@pytest.fixture(scope="module")
def server() -> Iterator[Measure]:
    """`server(folder, operation)` measures in a fresh process and returns its exit status and operations."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("killed_pass.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def call(folder: Path, operation: int = 0) -> tuple[int, int]:
        process.stdin.write(f"{folder} {operation}\n")
        process.stdin.flush()
        status, done = process.stdout.readline().split()
        return int(status), int(done)

    yield call
    process.stdin.close()
    process.wait(timeout=30)
    process.stdout.close()


@pytest.fixture(scope="module")
def undisturbed(server: Measure, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A run that nothing disturbed, and the number of its file operations."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    status, operations = server(folder)
    assert status == 0
    return folder, operations


@pytest.mark.parametrize("point", range(7))
def test_killed_at_a_random_operation(
    point: int, server: Measure, undisturbed: tuple[Path, int], tmp_path: Path, contents: Contents
) -> None:
    whole, operations = undisturbed
    # One point from each part of the run: random, and yet nothing is left out.
    fatal = random.Random(point).randint(1 + point * operations // 7, (point + 1) * operations // 7)
    assert server(tmp_path / "run", fatal)[0] == -signal.SIGKILL
    assert server(tmp_path / "run")[0] == 0
    assert contents(tmp_path / "run") == contents(whole)


def test_damaged_and_deleted_shards_are_measured_again(measured: Callable[..., StoredRun], contents: Contents) -> None:
    options = {"limit": 6, "unit_size": 2, "level": "quick"}
    run = measured("ouro", "arithmetic", **options)
    whole = contents(run.path)
    flipped = run.path / "questions" / "000000.parquet"
    data = bytearray(flipped.read_bytes())
    data[len(data) // 2] ^= 1
    flipped.write_bytes(bytes(data))
    (run.path / "depths" / "000001.parquet").unlink()
    (run.path / "units" / "000002.json").write_text("{")
    assert not verify(run.path).ok
    said: list[str] = []
    again = measured("ouro", "arithmetic", output=run.path, notify=said.append, **options)
    assert again.finished
    assert contents(run.path) == whole
    assert sum("measuring it again" in line for line in said) == 3
    assert verify(run.path).ok


def test_same_command_again_says_that_it_is_finished(measured: Callable[..., StoredRun]) -> None:
    run = measured("ouro", "arithmetic", limit=2, level="quick")
    said: list[str] = []
    measured("ouro", "arithmetic", limit=2, level="quick", output=run.path, notify=said.append)
    assert [line.partition(":")[0] for line in said] == [f"{run.path} is finished"]
    assert [event["event"] for event in run.events] == ["new", "call", "ways", "unit", "finished", "call"]
