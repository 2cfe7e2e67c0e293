"""Whatever a user gives, wrong or unusual: one clear line, or the result; never a traceback, a hang, or memory.

The cases are in the modules in this folder and run in a worker process (`worker.py`), which ends itself where a case
takes too long.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
SECONDS = 10.0
"""Of a case's own work."""
MEMORY = 1 << 30


@pytest.fixture(scope="module")
def shared(made_once: Callable[..., Path]) -> Path:
    """The checkpoint and the run that cases spoil copies of."""

    def fill(folder: Path) -> None:
        made = f"from pathlib import Path; from harness import make_shared; make_shared(Path({str(folder)!r}))"
        subprocess.run([sys.executable, "-c", made], cwd=HERE, env=surroundings(), check=True)

    return made_once("corpus", fill)


def surroundings(**changes: str) -> dict[str, str]:
    """The environment without the user's flags, and without a network to wait for."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOOPSCOPE_")}
    return {**kept, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **changes}


def outcomes(shared: Path, scratch: Path, step: int) -> list[dict[str, Any]]:
    """What came of the cases 0, step, 2·step, …; the worker is begun again behind one that ends it."""
    found: list[dict[str, Any]] = []
    count = 1
    while len(found) < count:
        folder = scratch / f"{len(found):04d}"
        folder.mkdir(parents=True)
        command = [sys.executable, "worker.py", str(shared), str(folder), str(step * len(found)), str(step)]
        done = subprocess.run(command, cwd=HERE, env=surroundings(), capture_output=True, text=True)
        ready, *ended = map(json.loads, done.stdout.splitlines())
        count, found = -(-ready["ready"] // step), found + ended
        if len(found) < count:
            found.append({"kind": f"ended the process ({done.returncode})", "text": done.stderr[:600]})
    return found


def judge(case: Any, found: dict[str, Any]) -> str | None:
    """What is wrong with an outcome; None where it is as it should be."""
    if found["kind"] not in case.wanted:
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


def test_every_case_has_a_name_of_its_own(corpus: tuple[Any, ...]) -> None:
    names = [case.name for case in corpus]
    assert sorted(names) == sorted(set(names))


def test_every_command_that_opens_a_run_is_given_a_run_that_names_code() -> None:
    from run_folders import OPENING

    from loopscope.cli.app import COMMANDS

    others = {"demo", "measure", "models", "tasks", "studies", "check", "reproduce", "lm-eval"}
    assert {words.split()[0] for words in OPENING} == {name for group in COMMANDS.values() for name in group} - others


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_cases(step: int, corpus: tuple[Any, ...], shared: Path, tmp_path: Path) -> None:
    """Every fifth case; the slow test runs them all."""
    chosen = corpus[::step]
    assert sum("line" in case.wanted for case in chosen) >= 400
    found = outcomes(shared, tmp_path / "scratch", step)
    wrong = {case.name: said for case, entry in zip(chosen, found, strict=True) if (said := judge(case, entry))}
    listed = "\n".join(f"  {name}: {said}" for name, said in wrong.items())
    assert not wrong, f"{len(wrong)} of {len(chosen)}:\n{listed}"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize(
    ("output", "run", "code"), [("/dev/full", "run", 2), (os.devnull, b"\xff", 2), (os.devnull, "run", 0)]
)
def test_surroundings_that_do_not_fit(
    output: str, run: str | bytes, code: int, encoding: str, shared: Path, tmp_path: Path
) -> None:
    """A full device, names that are no text, a terminal that cannot show every character: a result or one line."""
    words = [sys.executable, "-m", "loopscope", "tables", shared / "run" if run == "run" else run, "--name=mechanism"]
    with open(output, "w") as out:
        done = subprocess.run(
            words, cwd=tmp_path, env=surroundings(PYTHONIOENCODING=encoding), stdout=out, stderr=subprocess.PIPE
        )
    said = done.stderr.decode(errors="replace")
    assert (done.returncode, len(said.splitlines())) == (code, int(code > 0)), said
    assert "Traceback" not in said
