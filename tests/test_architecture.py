"""docs/architecture.md and its pictures say what the code says, and the walk that it describes is the one taken."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
WRITTEN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

# Groups of entry points, and the key under which a Parquet file holds its schema's version.
NO_MODULES = ("loopscope.models", "loopscope.tokenizers", "loopscope.schema")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("architecture", ROOT / "docs" / "figures" / "architecture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(script: ModuleType) -> None:
    page = script.PAGE.read_text(encoding="utf-8")
    assert script.write(page, script.tables()) == page, "run make architecture"


def test_the_pictures_are_up_to_date(script: ModuleType) -> None:
    for name, drawn in script.pictures().items():
        assert (script.IMAGES / name).read_text(encoding="utf-8") == drawn, f"{name}: run make architecture"


def test_every_file_has_a_line(script: ModuleType) -> None:
    """Files that say nothing about themselves leave a hole in the map."""
    empty = re.findall(r"^\| `(.+?)` \|\s*\|$", script.tables()["files"], flags=re.M)
    assert not empty


def test_the_walk_is_the_one_taken(script: ModuleType) -> None:
    """One question, measured: the functions of the page are called, in its order."""
    called = script.trace_walk().first()
    steps = [(script.look_up(name).file, name.partition(":")[2]) for name in script.WALK]
    assert [step for step in called if step in steps] == steps


def test_imports_are_drawn_without_shortcuts(script: ModuleType) -> None:
    """Whatever is reachable by imports is reachable by arrows."""

    def reachable(edges: dict[str, set[str]], start: str) -> set[str]:
        found = set(edges[start])
        for end in edges[start]:
            found |= reachable(edges, end)
        return found

    edges = script.imports()
    for package in edges:
        assert reachable(edges, package) == reachable(script.reduced(edges), package)


def test_examples(script: ModuleType) -> None:
    assert doctest.testmod(script).failed == 0


@pytest.mark.parametrize("document", WRITTEN, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_names_of_the_package_exist(document: Path) -> None:
    """`loopscope.some.name` in a document can be imported."""
    for quoted in re.findall(r"(?<![\w./-])loopscope(?:\.[A-Za-z_]\w*)+", document.read_text(encoding="utf-8")):
        module, *names = quoted.split(".")
        if quoted in NO_MODULES:
            continue
        found: object = importlib.import_module(module)
        for name in names:
            module = f"{module}.{name}"
            try:
                found = getattr(found, name)
            except AttributeError:
                found = importlib.import_module(module)


@pytest.mark.parametrize("document", WRITTEN, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_that_are_named_exist(document: Path) -> None:
    """`folder/file.py` in a document is a file of the repository or of the package."""
    if document.name in ("architecture.md", "CHANGELOG.md"):
        return  # generated, with paths below each package
    for quoted in re.findall(
        r"(?<=`)(?:python )?([\w./-]+/[\w.-]+\.(?:py|json|md))\b", document.read_text(encoding="utf-8")
    ):
        assert (ROOT / quoted).exists() or (ROOT / "src" / "loopscope" / quoted).exists(), f"{document.name}: {quoted}"
