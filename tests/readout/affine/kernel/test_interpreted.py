"""Runs the kernels through Triton's interpreter, in a process of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


def test_paths_from_states_through_the_interpreter(through_the_interpreter):
    through_the_interpreter(FOLDER / "test_kernel.py::test_a_path_from_states[True-dtype0]", 1)


@pytest.mark.slow
def test_every_kernel_through_the_interpreter(through_the_interpreter):
    through_the_interpreter(FOLDER / "test_kernel.py", 20)
