"""The package as its users import it."""

import subprocess
import sys

import pytest

from loopscope import path


def test_every_public_name_is_there_and_documented():
    assert sorted(path.__all__) == sorted(set(path.__all__))
    for name in path.__all__:
        public = getattr(path, name)
        if callable(public) and name != "PathFunction":
            assert public.__doc__, name


@pytest.mark.parametrize("module", ["torch", "scipy", "polars"])
def test_importing_it_needs_numpy_alone(module):
    probe = f"import sys, loopscope.path; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0
