"""How a pass ends that does not finish: signals, a Ray that dies, a driver that is killed. Real processes, real Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc to find the processes")

Start = Callable[..., "subprocess.Popen[str]"]


COMMAND = """
import signal
import sys
from loopscope.cli import main
from loopscope.store.writer import RunWriter

commit = RunWriter.commit

def wait(*given):
    commit(*given)
    print("stored", flush=True)
    sys.stdin.readline()

RunWriter.commit = wait
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it would be ignored
main()
"""
"""`loopscope`, which after each unit that it stores waits for a line."""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start(…)`: a pass that has stored its first unit and waits."""
    begun: list[subprocess.Popen[str]] = []

    def call(*flags: str) -> subprocess.Popen[str]:
        words = "measure --model toy-ouro --tasks arithmetic --limit 256 --level quick --transitions 1-3"
        words += f" --device cpu --progress none --output {tmp_path / 'run'}"
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *words.split(), *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        begun.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "stored\n", process.communicate()[1][-2000:]
        return process

    yield call
    for process in begun:
        if process.poll() is None:
            process.kill()
            process.communicate()


@pytest.mark.parametrize(
    ("number", "code", "name"),
    [
        (signal.SIGINT, 130, ""),
        (signal.SIGTERM, 143, " by SIGTERM"),
        pytest.param(signal.SIGHUP, 129, " by SIGHUP", marks=pytest.mark.slow),
    ],
)
def test_signals_end_alike(number: int, code: int, name: str, start: Start, tmp_path: Path) -> None:
    process = start()
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    questions = 64 * len(list((tmp_path / "run" / "units").glob("*.json")))
    assert err.splitlines() == [
        f"loopscope: {tmp_path / 'run'}: {questions} of 256 questions are stored",
        f"loopscope: interrupted{name}; the same command continues where this one stopped",
    ]


def children(process: subprocess.Popen[str]) -> dict[str, int]:
    """The processes that a driver started, by the name of their program."""
    found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return {Path(os.readlink(f"/proc/{child}/exe")).name: int(child) for child in found}


def descendants(process: int) -> list[int]:
    """Every process that a process started, and that those started."""
    found = [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return found + [one for child in found for one in descendants(child)]


def none_left(processes: list[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(alive, processes))


def alive(process: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["gcs_server", pytest.param("raylet", marks=pytest.mark.slow)])
def test_ray_that_dies_is_one_line_within_seconds(victim: str, start: Start) -> None:
    pytest.importorskip("ray")
    process = start("--engine", "ray", "--workers", "1")
    servers = children(process)
    started = descendants(process.pid)
    assert len(started) > 6
    os.kill(servers[victim], signal.SIGKILL)
    # Two seconds on an idle machine; Ray itself takes a minute to notice, or never does.
    _, err = process.communicate(timeout=30)
    assert process.returncode == 2
    (line,) = [line for line in err.splitlines() if line.startswith("loopscope: ")]
    assert "Ray has ended" in line
    assert "the same command continues" in line
    assert none_left(started, 2)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_no_process_outlives_its_driver(number: int, start: Start) -> None:
    pytest.importorskip("ray")
    process = start("--engine", "ray", "--workers", "1")
    started = descendants(process.pid)
    assert len(started) > 6
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == (143 if number == signal.SIGTERM else -number)
    assert none_left(started, 15)
    if number == signal.SIGTERM:
        assert "interrupted by SIGTERM" in err
