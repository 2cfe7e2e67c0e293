"""Executes the notebooks of this folder and writes them back with their outputs: `python docs/notebooks/renew.py`.

Each runs in an empty folder. What differs from machine to machine (times, paths, speeds) is taken out, so that the same
code on the same weights gives the same file.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent
SECONDS = 300
"""A cell that takes longer than this has failed."""


def execute(path: Path, folder: Path) -> Any:
    """The notebook, executed in a folder, with clean outputs."""
    notebook: Any = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(folder)}}).execute()
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            # Progress (on stderr) is another one every time.
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                clean(output, str(folder))
    notebook.metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python"},
    }
    return notebook


def clean(output: Any, folder: str) -> None:
    """One output without paths and the identity of the display that it rewrote."""
    output.pop("transient", None)
    for kind, content in output.get("data", {}).items():
        if kind.startswith("text/"):
            output["data"][kind] = content.replace(folder, ".")
    if "text" in output:
        output["text"] = output["text"].replace(folder, ".")


def main() -> None:
    """All notebooks, or those that are named."""
    named = [HERE / name for name in sys.argv[1:]]
    for path in named or sorted(HERE.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(execute(path, Path(folder)), path)
        print(path.name)


if __name__ == "__main__":
    main()
