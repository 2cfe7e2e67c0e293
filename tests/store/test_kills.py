"""Killed at any moment, then given the same command again: the run is the one that nothing disturbed."""

import json
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loopscope.store import StoredRun, verify

Contents = Callable[[Path], dict[str, bytes]]
Measure = Callable[..., StoredRun]
Write = Callable[[Path, int], tuple[int, int]]


@pytest.fixture(scope="module")
def write() -> Iterator[Write]:
    """`write(path, fatal)`: a measuring process, killed at that file operation; its status and its operations."""
    script = Path(__file__).with_name("killed_writer.py")
    with subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as p:
        assert p.stdin is not None
        assert p.stdout is not None
        given, found = p.stdin, p.stdout

        def call(path: Path, fatal: int) -> tuple[int, int]:
            print(json.dumps([str(path), fatal]), file=given, flush=True)
            status, operations = json.loads(found.readline())
            assert status in (0, -signal.SIGKILL)
            return status, operations

        yield call
        given.close()


@pytest.fixture(scope="module")
def operations(write: Write, tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many file operations an undisturbed run makes."""
    return write(tmp_path_factory.mktemp("counted") / "run", 0)[1]


@pytest.mark.parametrize("points", [16, pytest.param(10**6, marks=pytest.mark.slow)], ids=["some", "every"])
def test_resumes_after_a_kill(
    points: int, write: Write, operations: int, tmp_path: Path, undisturbed: Path, measure: Measure, contents: Contents
) -> None:
    """One point from each part of the run: random, and yet nothing is left out; the slow test takes every operation."""
    points = min(points, operations)
    for part in range(points):
        fatal = random.Random(part).randint(1 + part * operations // points, (part + 1) * operations // points)
        path = tmp_path / f"run-{fatal}"
        assert write(path, fatal)[0] == -signal.SIGKILL
        assert measure(path).finished
        assert contents(path) == contents(undisturbed), f"killed at operation {fatal} of {operations}"
        shutil.rmtree(path)


def test_resumes_after_being_killed_over_and_over(
    write: Write, operations: int, tmp_path: Path, undisturbed: Path, contents: Contents
) -> None:
    rng, kills = random.Random(5), 0
    while write(tmp_path / "run", rng.randint(operations // 6, operations // 3))[0]:
        kills += 1
        assert kills < 30
    assert kills >= 2
    assert contents(tmp_path / "run") == contents(undisturbed)
    assert verify(tmp_path / "run").ok


@pytest.mark.parametrize("fatal", [3, 6, 9, 12, 15, 18])
def test_resumes_after_a_kill_while_cleaning_up_damage(
    fatal: int, write: Write, copy: Path, undisturbed: Path, measure: Measure, contents: Contents
) -> None:
    (copy / "questions" / "000001.parquet").write_bytes(b"torn")
    (copy / "units" / "000003.json").unlink()
    (copy / "depths" / "000004.parquet.partial").write_bytes(b"half")
    assert write(copy, fatal)[0] == -signal.SIGKILL
    measure(copy)
    assert contents(copy) == contents(undisturbed)
