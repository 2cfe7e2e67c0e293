"""Measures the same questions with less and less address space until an allocation is refused; prints what happened.

Usage: short_of_memory.py CHECKPOINT FOLDER
"""

import json
import resource
import sys
from pathlib import Path

from loopscope.api import measure_with as measure


def virtual_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def main(model: str, folder: str) -> None:
    said: list[str] = []

    def call(name: str, count: int) -> None:
        measure(
            model,
            ["arithmetic"],
            output=f"{folder}/{name}",
            transitions=[1],
            limit=count,
            unit_size=32,
            batch_size="32",
            device="cpu",
            scalar_checks=0,
            notify=said.append,
        )

    call("plenty", 64)
    for megabytes in (60, 45, 34, 25, 18):
        resource.setrlimit(resource.RLIMIT_AS, (virtual_bytes() + megabytes * 1_000_000, resource.RLIM_INFINITY))
        call(f"short-{megabytes}", 64)
        if said:
            break
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(json.dumps({"megabytes": megabytes, "said": said}))


if __name__ == "__main__":
    main(*sys.argv[1:])
