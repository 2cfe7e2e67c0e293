"""How many small changes of the code the tests notice: a sample of mutants of each package, with fixed seeds.

    python tests/mutation.py path stats --mutants 40 --source src

A mutant differs from the code in one place: a comparison, an operator, a number, a condition, a sign. The tests of its
package run on it until one fails, those of the changed file first. Each is printed as file, line and change.
Docstrings, annotations and texts are not changed. A mutant that takes five times the processor time of the tests on the
code itself counts as noticed.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import random
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("path", "readout", "stats", "studies", "store")
LIBRARIES = (
    "torch",
    "transformers",
    "polars",
    "pyarrow.parquet",
    "scipy.stats",
    "mpmath",
    "matplotlib.pyplot",
)
ELSEWHERE = {"store": ("test_flipped_bits.py", "test_hub.py")}
"""Files of tests of a package that lie beside its folder."""
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div, ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


def places(tree: ast.AST, inside: bool = False) -> Iterator[tuple[ast.AST, str, int]]:
    """What can be changed: a node, the field of it, and the number of its element; annotations are left out."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "bases", "keywords") and not isinstance(tree, ast.Call):
            continue
        for index, node in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(node, ast.AST):
                continue
            number = isinstance(node, ast.Constant) and isinstance(node.value, int | float)
            condition = name == "test" and isinstance(tree, ast.If | ast.IfExp | ast.While)
            if inside and (type(node) in SWAPPED or number or condition or isinstance(node, ast.USub)):
                yield tree, name, index
            if not (isinstance(tree, ast.BinOp) and isinstance(node, ast.BitOr)):
                yield from places(node, inside or isinstance(node, ast.FunctionDef))


def change(tree: ast.AST, name: str, index: int) -> None:
    """Changes the node at a place."""
    held = getattr(tree, name)
    node = held[index] if isinstance(held, list) else held
    if type(node) in SWAPPED:
        new: ast.AST = SWAPPED[type(node)]()
    elif isinstance(node, ast.USub):
        new = ast.UAdd()
    elif isinstance(node, ast.Constant):
        value = not node.value if isinstance(node.value, bool) else node.value + 1
        new = ast.Constant(value)
    else:
        new = ast.UnaryOp(ast.Not(), node)
    if isinstance(held, list):
        held[index] = new
    else:
        setattr(tree, name, new)


def mutant(source: Path, package: str, seed: int, into: Path) -> str:
    """Copies the source with one place of a package changed; what was changed."""
    files = sorted((source / "loopscope" / package).rglob("*.py"))
    chosen = random.Random(f"{package} {seed}")
    counts = [len(list(places(ast.parse(file.read_text())))) for file in files]
    file = chosen.choices(files, weights=counts)[0]
    before, after = ast.parse(file.read_text()), ast.parse(file.read_text())
    tree, name, index = chosen.choice(list(places(after)))
    change(tree, name, index)
    shutil.copytree(source, into, ignore=shutil.ignore_patterns("__pycache__"))
    (into / file.relative_to(source)).write_text(ast.unparse(ast.fix_missing_locations(after)))
    old, new = ast.unparse(before).splitlines(), ast.unparse(after).splitlines()
    lines = next(((a, b) for a, b in zip(old, new, strict=False) if a != b), ("", ""))
    line = getattr(tree, "lineno", 0)
    return f"{file.relative_to(source)}:{line}: {lines[0].strip()}  ->  {lines[1].strip()}"


class Order:
    """A plugin of pytest: files called like the changed one first, then the quick ones; notes what each file takes."""

    def __init__(self, changed: str, before: dict[str, float]) -> None:
        self.changed, self.before = Path(changed), before
        self.times: dict[str, float] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Sorts by file alone, so that fixtures of a file are made once."""

        def key(item: pytest.Item) -> tuple[bool, bool, float, str]:
            path = Path(item.location[0])
            other = self.changed.stem not in path.stem, self.changed.parent.name != path.parent.name
            return *other, self.before.get(str(path), 0.0), str(path)

        items.sort(key=key)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds up the seconds of a file."""
        file = report.location[0]
        self.times[file] = self.times.get(file, 0.0) + report.duration


def run_tests(
    tests: Path, package: str, source: Path, order: Order, seconds: float | None = None
) -> tuple[bool, float, dict[str, float]]:
    """Whether tests pass with this source, their processor time, and the seconds of each file.

    They run in a fork of this process, which has imported the libraries and nothing of loopscope.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reader)
            if seconds is not None:
                resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 5))
            nothing = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nothing, stream)
            os.chdir(tests.parent)
            os.environ |= {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
            sys.dont_write_bytecode = True
            sys.path.insert(0, str(source))
            words = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0"]
            words += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # a library may bring a plugin of pytest
            words += ["-c", str(tests.parent / "pyproject.toml"), "-m", "not gpu and not slow", str(tests / package)]
            words += [str(tests / name) for name in ELSEWHERE.get(package, ()) if (tests / name).exists()]
            words += [str(source / "loopscope" / package)]  # its doctests
            status = int(pytest.main(words, plugins=[order]))
            os.write(writer, json.dumps(order.times).encode())
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    _, state = os.waitpid(pid, 0)
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    return state == 0, used, json.loads(said or "{}")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="*", default=PACKAGES)
    parser.add_argument("--mutants", type=int, default=40)
    parser.add_argument("--source", type=Path, default=ROOT / "src")
    parser.add_argument("--tests", type=Path, default=ROOT / "tests")
    given = parser.parse_args()
    tests = given.tests.resolve()
    for library in LIBRARIES:
        importlib.import_module(library)
    for package in given.packages:
        passed, seconds, times = run_tests(tests, package, given.source.resolve(), Order("", {}))
        assert passed, f"the tests of {package} fail without any change"
        noticed = 0
        for seed in range(given.mutants):
            with tempfile.TemporaryDirectory() as folder:
                what = mutant(given.source, package, seed, Path(folder) / "src")
                order = Order(what.partition(":")[0], times)
                survived, used, _ = run_tests(tests, package, Path(folder) / "src", order, 5 * seconds + 20)
            noticed += not survived
            print(f"  {'survives' if survived else 'noticed'}: seed {seed}, {used:.0f} s: {what}", flush=True)
        print(
            f"{package}: {noticed} of {given.mutants} mutants noticed, tests take {seconds:.0f} s of processor",
            flush=True,
        )


if __name__ == "__main__":
    main()
