"""How far one question walks: our functions and files that run when it is measured a second time in one process.

python benchmarks/walk.py [level]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import loopscope as ls

SOURCE = str(Path(ls.__file__).parent)
MOST_FUNCTIONS, MOST_FILES = 300, 50


def walked(call: Any) -> set[CodeType]:
    """The code of every function of ours that a call runs, in any of its threads."""
    found: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            found.add(frame.f_code)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    # What stands inside a function (a generator expression, a lambda) is part of it.
    return {code for code in found if "<" not in code.co_name}


def main() -> None:
    """Print how many there are, by package, and the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("level", nargs="?", default="grid", choices=["quick", "grid", "full"])
    level = parser.parse_args().level
    with tempfile.TemporaryDirectory() as folder:

        def measure(name: str) -> None:
            ls.measure(
                "toy-ouro",
                "arithmetic",
                output=f"{folder}/{name}",
                transitions=[4],
                level=level,
                limit=1,
                device="cpu",
            )

        measure("first")
        codes = walked(lambda: measure("second"))
    by_file: dict[str, int] = {}
    for code in codes:
        name = code.co_filename.removeprefix(SOURCE).lstrip("/")
        by_file[name] = by_file.get(name, 0) + 1
    by_package: dict[str, tuple[int, int]] = {}
    for name, count in by_file.items():
        package = name.split("/")[0] if "/" in name else "top level"
        functions, files = by_package.get(package, (0, 0))
        by_package[package] = functions + count, files + 1
    for package, (functions, files) in sorted(by_package.items(), key=lambda entry: -entry[1][0]):
        print(f"  {package:<12} {functions:>4} functions in {files:>3} files")
    print(f"  {'together':<12} {len(codes):>4} functions in {len(by_file):>3} files, level {level}")
    print(f"  {'goal':<12} {MOST_FUNCTIONS:>4} functions in {MOST_FILES:>3} files")


if __name__ == "__main__":
    main()
