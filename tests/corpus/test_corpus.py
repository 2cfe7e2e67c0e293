"""Whatever a user gives, wrong or unusual: one clear line, or the result; never a traceback, a hang, or memory.

The cases are in the modules beside this one and run in a worker process of their own (`worker.py`), which is ended and
begun again behind a case that takes too long. A few commands run as processes of their own.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
SECONDS = 10.0
HANG = 60.0
MEMORY = 1 << 30
BAD_INPUTS = 400
NEAR_MISSES = 40


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint and the run that cases spoil copies of."""
    folder = tmp_path_factory.mktemp("corpus") / "shared"
    made = f"from pathlib import Path; from place import make_shared; make_shared(Path({str(folder)!r}))"
    subprocess.run([sys.executable, "-c", made], cwd=HERE, env=surroundings(), check=True, timeout=300)
    return folder


def surroundings(**changes: str) -> dict[str, str]:
    """The environment without the user's flags, and without a network to wait for."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOOPSCOPE_")}
    return {**kept, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **changes}


class Worker:
    """A process that runs every so many cases in order; what it says comes through a queue."""

    def __init__(self, shared: Path, scratch: Path, first: int, step: int) -> None:
        command = [sys.executable, str(HERE / "worker.py"), str(shared), str(scratch), str(first), str(step)]
        self.errors = scratch.with_suffix(".stderr").open("w+")
        self.process = subprocess.Popen(
            command,
            cwd=HERE,
            env=surroundings(),
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            start_new_session=True,
        )
        self.lines: queue.Queue[str | None] = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def say(self, seconds: float) -> dict[str, Any] | None:
        """What it says next; None at its end. Raises queue.Empty when it says nothing for so long."""
        line = self.lines.get(timeout=seconds)
        return None if line is None else json.loads(line)

    def end(self) -> str:
        """Ends the process and what it has started; the last that it wrote to stderr."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.errors.seek(0)
        said = self.errors.read()[-400:]
        self.errors.close()
        return said


def outcomes(shared: Path, scratch: Path, count: int, step: int) -> list[dict[str, Any]]:
    """What came of cases, so many of them; the worker is begun again behind one that hangs or ends it."""
    found: list[dict[str, Any]] = []
    attempt = 0
    while len(found) < count:
        attempt += 1
        folder = scratch / str(attempt)
        folder.mkdir(parents=True)
        worker = Worker(shared, folder, step * len(found), step)
        try:
            # Libraries are imported before the first case.
            said = worker.say(120.0)
            while said is not None:
                if "end" in said:
                    found.append(said)
                said = worker.say(HANG) if len(found) < count else None
            if len(found) < count:
                worker.process.wait(30)
                found.append({"kind": f"ended the process ({worker.process.returncode})", "text": worker.end()})
        except queue.Empty:
            found.append({"kind": "hang", "text": f"more than {HANG:g} s"})
        finally:
            if worker.process.returncode is None:
                worker.end()
    return found


def judge(case: Any, found: dict[str, Any]) -> str | None:
    """What is wrong with an outcome; None where it is as it should be."""
    wanted = "accepted" if case.accepted else "line"
    if found["kind"] != wanted:
        return f"{found['kind']}: {found['text']}"
    if found["seconds"] > SECONDS:
        return f"took {found['seconds']:.1f} s"
    if found["bytes"] > MEMORY:
        return f"took {found['bytes'] / 2**20:.0f} MiB"
    return None


@pytest.fixture(scope="module")
def corpus() -> tuple[Any, ...]:
    """The cases; their modules import each other by name."""
    from cases import CASES

    return CASES


def test_corpus_is_large_and_every_case_says_why(corpus: tuple[Any, ...]) -> None:
    names = [case.name for case in corpus]
    assert len(set(names)) == len(names)
    assert all(case.why for case in corpus)
    assert sum(case.accepted for case in corpus) >= NEAR_MISSES


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_cases(step: int, corpus: tuple[Any, ...], shared: Path, tmp_path: Path) -> None:
    """Every fourth case; the slow test runs them all."""
    chosen = corpus[::step]
    assert sum(not case.accepted for case in chosen) >= BAD_INPUTS
    found = outcomes(shared, tmp_path / "scratch", len(chosen), step)
    wrong = {case.name: said for case, entry in zip(chosen, found, strict=True) if (said := judge(case, entry))}
    listed = "\n".join(f"  {name}: {said}" for name, said in wrong.items())
    assert not wrong, f"{len(wrong)} of {len(chosen)}:\n{listed}"


# Enough of each kind to see that a process of its own does as the worker does.
SAMPLE = (
    "measure --transitions '1-1000000000'",
    "measure --device 'meta'",
    "--config: an alias bomb",
    "data: a FIFO",
    "data: deep JSON",
    "tables of nothing",
    "report into a full device",
    "accepted: tables --name Failure_Shares",
)
PROGRAM = [sys.executable, "-c", "from loopscope.cli import main; main()"]


@pytest.mark.slow
def test_a_sample_as_processes(corpus: tuple[Any, ...], shared: Path, tmp_path: Path) -> None:
    from case import Outcome, judge_refusal
    from place import Place

    for case in corpus:
        if case.name not in SAMPLE:
            continue
        here = tmp_path / str(SAMPLE.index(case.name))
        here.mkdir()
        done = subprocess.run(
            [*PROGRAM, *case.command(Place(here, shared))],
            cwd=here, env=surroundings(), capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        found = judge_refusal(done.returncode, done.stderr) if done.returncode else Outcome("accepted")
        assert found.kind == ("accepted" if case.accepted else "line"), (case.name, done.stderr[-600:])


@pytest.mark.parametrize(
    ("arguments", "changes"),
    [
        (["tables", "RUN", "--name=mechanism"], {"stdout": "/dev/full"}),
        (["models", "--json"], {"stdout": "/dev/full"}),
        (["figures", "RUN", "--name=direction-progress", b"--output=\xff\xfe"], {}),
        (["report", b"\xff\xfe-run"], {}),
        (["tables", "RUN", "--name=mechanism"], {"encoding": "ascii"}),
        (["studies"], {"encoding": "latin-1"}),
    ],
)
def test_surroundings_that_do_not_fit(
    arguments: list[str | bytes], changes: dict[str, str], shared: Path, tmp_path: Path
) -> None:
    """A full device, names that are no text, a terminal that cannot show every character: a result or one line."""
    given = [str(shared / "run") if argument == "RUN" else argument for argument in arguments]
    variables = {"PYTHONIOENCODING": changes["encoding"]} if "encoding" in changes else {}
    with open(changes.get("stdout", os.devnull), "w") as out:
        done = subprocess.run(
            [*PROGRAM, *given],
            cwd=tmp_path,
            env=surroundings(**variables),
            stdout=out,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    said = done.stderr.decode(errors="replace")
    assert "Traceback" not in said, said
    assert "Exception ignored" not in said, said
    assert done.returncode in ((2,) if "stdout" in changes else (0, 2)), said
    assert len(said.splitlines()) == (1 if done.returncode else 0), said
