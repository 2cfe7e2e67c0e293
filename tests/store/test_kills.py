"""Killed at any moment, then given the same command again: the run is the one that nothing disturbed."""

import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from loopscope.store import StoredRun, verify

SCRIPT = Path(__file__).with_name("killed_writer.py")
Contents = Callable[[Path], dict[str, bytes]]
Measure = Callable[..., StoredRun]


def write(path: Path, fatal: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), str(path), str(fatal)], capture_output=True, text=True, timeout=60, check=False
    )


def was_killed(result: subprocess.CompletedProcess[str]) -> bool:
    assert result.returncode in (0, -signal.SIGKILL), result.stderr
    return result.returncode != 0


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many file operations an undisturbed run makes."""
    result = write(tmp_path_factory.mktemp("counted") / "run", 0)
    assert result.returncode == 0, result.stderr
    return int(result.stdout)


@pytest.mark.parametrize("seed", range(20))
def test_resumes_after_a_kill_at_a_random_operation(
    seed: int, operations: int, tmp_path: Path, undisturbed: Path, measure: Measure, contents: Contents
) -> None:
    # One point from each twentieth of the run: random, and yet nothing is left out.
    fatal = random.Random(seed).randint(1 + seed * operations // 20, (seed + 1) * operations // 20)
    assert was_killed(write(tmp_path / "run", fatal))
    run = measure(tmp_path / "run")
    assert run.finished
    assert contents(tmp_path / "run") == contents(undisturbed)


def test_resumes_after_being_killed_over_and_over(
    operations: int, tmp_path: Path, undisturbed: Path, contents: Contents
) -> None:
    rng = random.Random(5)
    kills = 0
    while was_killed(write(tmp_path / "run", rng.randint(operations // 6, operations // 3))):
        kills += 1
        assert kills < 30
    assert kills >= 2
    assert contents(tmp_path / "run") == contents(undisturbed)
    assert verify(tmp_path / "run").ok


@pytest.mark.parametrize("fatal", [3, 6, 9, 12, 15, 18])
def test_resumes_after_a_kill_while_cleaning_up_damage(
    fatal: int, tmp_path: Path, undisturbed: Path, measure: Measure, contents: Contents
) -> None:
    path = tmp_path / "run"
    shutil.copytree(undisturbed, path)
    (path / "questions" / "000001.parquet").write_bytes(b"torn")
    (path / "units" / "000003.json").unlink()
    (path / "depths" / "000004.parquet.partial").write_bytes(b"half")
    assert was_killed(write(path, fatal))
    measure(path)
    assert contents(path) == contents(undisturbed)
