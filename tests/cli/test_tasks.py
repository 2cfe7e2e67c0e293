from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
from rich.console import Console

from loopscope.cli.listing import list_tasks
from loopscope.tasks.benchmarks import BENCHMARKS


def printed(width: int) -> str:
    output = io.StringIO()
    list_tasks(console=Console(file=output, width=width))
    return output.getvalue()


def test_every_task_has_its_line_with_splits_and_source() -> None:
    lines = {line.split()[0]: line for line in printed(80).splitlines() if line.startswith("  ")}
    assert {"arithmetic", "arithmetic-mc", *BENCHMARKS} == set(lines)
    assert "test 1319, train 7473, train256;" in lines["gsm8k"]
    assert "Rowan/hellaswag@218ec52e" in lines["hellaswag"]


def test_a_narrow_terminal_breaks_no_line() -> None:
    assert printed(20) == printed(400)


def test_json_is_one_array_of_the_same_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    list_tasks(as_json=True)
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows][-7:] == list(BENCHMARKS)
    assert rows[-1]["splits"] == {"validation": 1221, "train": 9741}
    assert rows[-1]["subsets"] == {"train1024": 1024}


def test_listing_imports_neither_torch_nor_datasets() -> None:
    code = (
        "import sys; from loopscope.cli.listing import list_tasks; list_tasks(); "
        "sys.exit(bool({'torch', 'datasets', 'polars', 'tokenizers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
