"""What tests in several rooms share."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

# How long an example takes depends on what else the machine does, and no test is about that.
settings.register_profile("loopscope", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("loopscope")

ROOT = Path(__file__).resolve().parents[1]
LONGEST = (
    "measuring/test_endings.py",
    "corpus/test_corpus.py",
    "report/browser/test_access.py",
    "cli/test_demo.py",
    "reproduction/test_reproduce.py",
    "studies/figures/test_figures.py",
    "measuring/test_ray_engine.py",
    "store/test_damage.py",
    "research/test_embedded.py",
    "measuring/test_memory.py",
    "measuring/kernels/test_interpreted.py",
    "measuring/test_objects.py",
    "measuring/test_seven_tasks.py",
    "report/browser/test_addresses.py",
    "readout/certified/test_enclosures.py",
    "research/test_experiments.py",
    "readout/general/kernels/test_interpreted.py",
    "test_readme.py",
)
"""Files of more than ten seconds, the longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begins with the longest files: workers that get whole files end at about the same time then."""
    places = {ROOT / "tests" / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.fixture(scope="session")
def made_once(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, Callable[[Path], None]], Path]:
    """A folder that one worker fills and all of them read: `made_once(name, fill)`."""
    # A worker's own folder lies in that of the whole session.
    place = tmp_path_factory.getbasetemp()
    place = place.parent if hasattr(request.config, "workerinput") else place

    def get(name: str, fill: Callable[[Path], None]) -> Path:
        folder, finished = place / f"once-{name}", place / f"once-{name}.finished"
        with FileLock(place / f"once-{name}.lock"):
            if not finished.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                fill(folder)
                finished.touch()
        return folder

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
