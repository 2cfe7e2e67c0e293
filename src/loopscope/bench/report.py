"""A finished benchmark: as JSON for the file, as text for the terminal."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loopscope.bench.machine import in_words
from loopscope.bench.row import Row
from loopscope.bench.table import error_table, table
from loopscope.store.atomic import clear_write_errors, write_atomically

SCHEMA = 1


@dataclass
class Report:
    """Rows as they come in; `failed` holds the rows that broke, with what broke them."""

    machine: dict[str, str | int]
    quick: bool
    rows: list[Row] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "schema": SCHEMA,
            "machine": self.machine,
            "quick": self.quick,
            "rows": [row.as_json() for row in self.rows],
            "failed": self.failed,
        }

    def write(self, path: Path) -> None:
        """The JSON file; replaced as a whole."""
        text = json.dumps(self.as_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        with clear_write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())

    def text(self) -> str:
        """Machine, errors, table."""
        errors = [error_table(row) for row in self.rows if row.errors]
        broken = [f"{name} failed: {reason}" for name, reason in self.failed.items()]
        return "\n\n".join([in_words(self.machine), *errors, table(self.rows), *broken])
