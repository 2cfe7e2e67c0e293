"""`make size` counts lines as its table says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "size.py"


def test_comments_blanks_and_docstrings_are_no_code() -> None:
    spec = importlib.util.spec_from_file_location("size", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    size = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(size)
    documented = '"""A module."""\n\n\ndef f(\n    x,\n):\n    """What\n    it does."""\n    # why\n'
    source = documented + '    return """two\nlines"""\n'
    assert size.lines_of(source) == (5, 3)
