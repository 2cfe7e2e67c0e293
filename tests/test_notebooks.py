"""The notebooks of the documents run as they stand, and what is stored in them is what running them gives."""

from __future__ import annotations

import base64
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LARGEST_PICTURE = 80 * 1024

pytest.importorskip("nbclient", reason="notebooks need nbclient and ipykernel: pip install nbclient ipykernel")


def renew() -> Any:
    spec = importlib.util.spec_from_file_location("renew", FOLDER / "renew.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def outputs(notebook: Any) -> list[list[tuple[str, list[str]]]]:
    """What every code cell shows: kinds of outputs, in order."""
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [[(each["output_type"], sorted(each.get("data", {}))) for each in cell["outputs"]] for cell in code]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_is_stored(path: Path, tmp_path: Path) -> None:
    """Numbers may differ from machine to machine; an error in a cell raises."""
    executed = renew().execute(path, tmp_path)
    assert outputs(executed) == outputs(json.loads(path.read_text(encoding="utf-8")))
    text = json.dumps(executed, ensure_ascii=False)
    assert "\\u001b[" not in text, "escape sequences of a terminal"
    assert str(tmp_path) not in text


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_stored_is_small_and_of_no_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    notebook = json.loads(text)
    assert not re.search(r"/(root|home|tmp|work|Users)/|tokens/s|\d\d:\d\d:\d\d", text)
    shown = [each for cell in notebook["cells"] for each in cell.get("outputs", ())]
    assert not [each for each in shown if each["output_type"] == "error" or each.get("name") == "stderr"]
    for each in shown:
        assert len(base64.b64decode("".join(each.get("data", {}).get("image/png", "")))) <= LARGEST_PICTURE
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1)), "run from top to bottom"
