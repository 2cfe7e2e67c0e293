"""What tests in several rooms share."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes depends on what else the machine does, and no test is about that.
settings.register_profile("loopscope", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("loopscope")

ROOT = Path(__file__).resolve().parents[1]


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
