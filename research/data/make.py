"""Writes the rows of the embedded tasks: `python -m research.data.make [FOLDER]`.

Every row follows from the seed, the split and its number, so the files come out the same every time.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from loopscope.tasks.known_tasks import EMBEDDED_TASKS, FOLDER
from research.data import arithmetic, stories

WRITERS = {"arithmetic": arithmetic.row, "stories": stories.row}


def lines(task: str, split: str, count: int) -> Iterator[str]:
    """The first rows of a split, as they are stored."""
    return (json.dumps(WRITERS[task](split, index), separators=(",", ":")) + "\n" for index in range(count))


def packed(text: str) -> bytes:
    """Compressed, without the time of day."""
    return gzip.compress(text.encode(), 9, mtime=0)


def main(folder: Path) -> None:
    """Write every split."""
    for task in WRITERS:
        for split, count in EMBEDDED_TASKS[task].splits.items():
            data = packed("".join(lines(task, split, count)))
            (folder / f"{task}-{split}.jsonl.gz").write_bytes(data)
            print(f"{task} {split}: {count} rows, {len(data):,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
