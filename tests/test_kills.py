"""`measure`, `reproduce` and `control`, killed at random operations and given again: equal to an undisturbed call.

The moment is a number of file operations, not of seconds: one from each part of the command, with fixed seeds. The fast
tests take a few moments of each command, the slow ones fifty in all.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loopscope.models.registry import EMBEDDED

HERE = Path(__file__).parent
COMMANDS = {
    "measure": "measure --model toy-ouro --tasks arithmetic,arithmetic-mc --transitions 3,4 --depths 0-5 --limit 4"
    " --level full --tokens --lens 2 --protocol loopscope:unit_size=2 --device cpu --progress none --output out",
    "reproduce": "reproduce --output out --stand-ins --random-weights --checkpoints ouro-1.4b=model --models ouro-1.4b"
    " --tasks gsm8k --only mechanism,direction-progress --updates-only --limit 2 --device cpu --progress none",
    "control": "control train test --heads heads --output figure.pdf --format csv",
}
FAST = {"measure": 2, "reproduce": 1, "control": 1}
SLOW = {"measure": 20, "reproduce": 15, "control": 15}
"""Kills of the slow test. `control` has 15 operations: it is killed before each of them, so while and between heads are
trained, and before each file of a head is whole.
"""
SMALL = {
    "architectures": ["OuroForCausalLM"],
    "model_type": "ouro",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 4096,
    "rope_theta": 1e4,
    "total_ut_steps": 4,
    "torch_dtype": "bfloat16",
    "vocab_size": 1024,
}

Run = Callable[[str, Path, int], dict[str, int]]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """`run(name, folder, fatal)`: a command in a forked process; its exit status and its file operations."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "killed_commands.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def call(name: str, folder: Path, fatal: int = 0) -> dict[str, int]:
        asked = {"words": COMMANDS[name].split(), "folder": str(folder), "fatal": fatal}
        print(json.dumps(asked), file=process.stdin, flush=True)
        found: dict[str, int] = json.loads(process.stdout.readline())
        return found

    yield call
    process.stdin.close()
    process.wait()
    process.stdout.close()


@pytest.fixture
def prepare(run_of: Callable[[str], Path]) -> Callable[[str, Path], Path]:
    """A folder in which a command can run."""

    def make(name: str, folder: Path) -> Path:
        folder.mkdir(parents=True)
        if name == "reproduce":
            (folder / "model").mkdir()
            (folder / "model" / "config.json").write_text(json.dumps(SMALL))
            shutil.copy(EMBEDDED / "toy-ouro" / "tokenizer.json", folder / "model")
        elif name == "control":
            for split in ("train", "test"):
                shutil.copytree(run_of(f"policies-{split}"), folder / split)
        return folder

    return make


def contents(folder: Path) -> dict[str, bytes]:
    """Every file by name, but for what holds times: logs, locks, and figures, whose bytes have a date."""
    return {
        path.relative_to(folder).as_posix(): b"" if path.suffix in (".pdf", ".png", ".html") else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("events.jsonl", ".loopscope.lock")
    }


def check(name: str, kills: int, run: Run, prepare: Callable[[str, Path], Path], place: Path) -> None:
    """One kill in each of so many parts of the command, each in a folder of its own, then the same command again."""
    whole = prepare(name, place / "whole")
    undisturbed = run(name, whole, 0)
    assert undisturbed["status"] == 0
    operations = undisturbed["operations"]
    wrong = []
    for part in range(kills):
        fatal = random.Random(f"{name} {part}").randint(
            1 + part * operations // kills, (part + 1) * operations // kills
        )
        folder = prepare(name, place / f"killed-{part}")
        assert run(name, folder, fatal)["status"] == -signal.SIGKILL
        again = run(name, folder, 0)["status"]
        expected, found = contents(whole), contents(folder)
        different = sorted(file for file in {*expected, *found} if expected.get(file) != found.get(file))
        if again or different:
            wrong.append(f"killed before operation {fatal} of {operations}: exit {again}, other files {different}")
        shutil.rmtree(folder)
    print(f"{name}: {operations} operations, {kills} kills")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", COMMANDS)
def test_killed_and_given_again(name: str, run: Run, prepare: Callable[[str, Path], Path], tmp_path: Path) -> None:
    check(name, FAST[name], run, prepare, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_killed_at_many_operations(name: str, run: Run, prepare: Callable[[str, Path], Path], tmp_path: Path) -> None:
    check(name, SLOW[name], run, prepare, tmp_path)
