"""What tests of several packages share: runs measured once per test run, and folders filled once.

| fixture | what it gives |
|---|---|
| `run_of(name)` | the folder of a finished run, measured by the first test that asks; nobody changes it |
| `copy_of_run(name)` | a copy in the test's own folder, to damage or continue |
| `made_once(name, fill)` | a folder that one worker fills and all of them read |

Names of runs: the twelve of `golden/golden_runs.py` (`ouro-grid`, `ouro-full`, `options`, `ties`, `ouro-inside`,
`huginn-grid`, `huginn-full`, `paper`, `paper-huginn`, `certify`, `trace`, `trace-huginn`), and those of `more_runs`:
`rich` has every stored table, `policies-train` and `policies-test` are what `control` and its heads need.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

# How long an example takes depends on what else the machine does, and no test is about that.
settings.register_profile("loopscope", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("loopscope")

ROOT = Path(__file__).resolve().parents[1]


def more_runs() -> dict[str, dict[str, Any]]:
    """Arguments of `measure` for runs whose numbers are nobody's reference."""
    policies = {"transitions": [4], "depths": "1-5", "trace": True, "limit": 6, "dtype": "float32"}
    return {
        "rich": {
            "tasks": ["arithmetic", "arithmetic-mc"],
            "transitions": "3,4",
            "depths": "0-5",
            "level": "full",
            "limit": 3,
            "protocol": "loopscope:unit_size=2",
            "dtype": "float32",
            **dict.fromkeys(("tokens", "paths", "certify"), True),
            "lens": 3,
        },
        "policies-train": {"tasks": "arithmetic:train", **policies},
        "policies-test": {"tasks": "arithmetic:test", **policies},
    }


def measure_named(name: str, output: Path) -> None:
    """Measure a named run into a folder."""
    import loopscope as ls

    if name in (more := more_runs()):
        ls.measure("toy-ouro", output=output, device="cpu", **more[name])
        return
    sys.path.insert(0, str(ROOT / "tests" / "golden"))
    from golden_runs import RUNS

    {run.name: run for run in RUNS}[name].measure(output)


@pytest.fixture(scope="session")
def made_once(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, Callable[[Path], object]], Path]:
    """A folder that one worker fills and all of them read: `made_once(name, fill)`."""
    # A worker's own folder lies in that of the whole session.
    place = tmp_path_factory.getbasetemp()
    place = place.parent if hasattr(request.config, "workerinput") else place

    def get(name: str, fill: Callable[[Path], object]) -> Path:
        folder, finished = place / f"once-{name}", place / f"once-{name}.finished"
        with FileLock(place / f"once-{name}.lock"):
            if not finished.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                fill(folder)
                finished.touch()
        return folder

    return get


@pytest.fixture(scope="session")
def run_of(made_once: Callable[..., Path]) -> Callable[[str], Path]:
    """The folder of a finished run that all tests share."""

    def get(name: str) -> Path:
        return made_once(f"run-{name}", lambda folder: measure_named(name, folder / "run")) / "run"

    return get


@pytest.fixture
def copy_of_run(run_of: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a shared run in the test's own folder."""

    def get(name: str) -> Path:
        return Path(shutil.copytree(run_of(name), tmp_path / name, dirs_exist_ok=True))

    return get


@pytest.fixture
def through_the_interpreter() -> Callable[[Path, int], None]:
    """Runs a folder's or file's tests where Triton's interpreter runs the kernels: `through_the_interpreter(path, n)`.

    Triton decides at import whether it interprets, so they have a process of their own. At least n of them must pass.
    """
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs Triton")
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("interpreted already")

    def run(tests: Path, least: int) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", tests],
            cwd=ROOT,
            env=os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert int(done.stdout.rsplit(" passed", 1)[0].split()[-1]) >= least, done.stdout

    return run
