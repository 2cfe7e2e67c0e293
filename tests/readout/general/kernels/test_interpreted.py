"""Runs this folder's kernels through Triton's interpreter, in a process of their own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.mark.slow
def test_every_kernel_through_the_interpreter(through_the_interpreter):
    through_the_interpreter(Path(__file__).parent, 24)
