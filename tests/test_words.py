"""Errors that Python and the command line share name their settings with `setting`, never as a flag."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import loopscope

SOURCE = Path(loopscope.__file__).parent
COMMANDS = ("cli", "bench", "toys")
"""Packages that only commands call."""


def raised_texts(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "LoopscopeError":
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value


def test_no_shared_error_speaks_of_flags() -> None:
    found = [
        f"{path.relative_to(SOURCE)}: {text}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).parts[0] not in COMMANDS
        for text in raised_texts(path)
        if re.search(r"(?<!\w)--[a-z{]?", text)
    ]
    assert found == []
