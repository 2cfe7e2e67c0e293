"""docs/operations.md lists the operations that have a rule, and what is taken at their kinks."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_page_says_what_the_rules_are():
    spec = importlib.util.spec_from_file_location("operations", ROOT / "docs" / "figures" / "operations.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page = script.PAGE.read_text(encoding="utf-8")
    assert script.write(page) == page, "run python docs/figures/operations.py --write"
    listed = set(script.operations()) - set(script.INTERNAL)
    assert all(f"`{name}`" in page for name in listed)
