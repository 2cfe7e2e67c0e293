"""`make docs`: pages for the notebooks and for the columns of a run directory, then the site.

The sources are copied to build/docs, so that generated pages never stand among them.
"""

from __future__ import annotations

import html
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from loopscope.store.schema import SCHEMA_VERSION, TABLES, Column, Table

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
BUILT = ROOT / "build" / "docs"


def columns_page() -> str:
    """Every table and column of the schema."""
    head = f"# Columns\n\nTables of a run directory, schema version {SCHEMA_VERSION}; null where nothing applies."
    return f"{head}\n" + "".join(map(_table, TABLES.values()))


def _table(table: Table) -> str:
    lines = [
        f"\n## `{table.name}`: one row per {table.per}\n",
        f"Sorted by {', '.join(f'`{name}`' for name in table.key)} within a shard.\n",
        "| column | type | unit | level | null | since | meaning |",
        "|---|---|---|---|---|---|---|",
        *map(_column, table.columns),
    ]
    return "\n".join(lines) + "\n"


def _column(column: Column) -> str:
    kind = column.type if column.length is None else f"{column.type}[{column.length}]"
    meaning = column.meaning.replace("|", "\\|")
    null = "yes" if column.nullable else ""
    return f"| `{column.name}` | `{kind}` | {column.unit} | {column.level} | {null} | {column.since} | {meaning} |"


def notebook_page(path: Path) -> str:
    """A notebook with its stored outputs as Markdown: of an output the richest form is shown."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts = [part for cell in cells for part in _cell(cell)]
    return "---\nhide: [toc]\n---\n\n" + "\n\n".join(
        [*parts, f"*This page is the notebook `docs/notebooks/{path.name}`.*", ""]
    )


def _cell(cell: dict[str, Any]) -> list[str]:
    source = "".join(cell["source"])
    return (
        [source] if cell["cell_type"] == "markdown" else [f"```python\n{source}\n```", *map(_output, cell["outputs"])]
    )


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {"text/plain": output.get("text", "")})
    if "text/html" in data:
        return f'<div class="notebook-output">{"".join(data["text/html"])}</div>'
    if "image/png" in data:
        width = output["metadata"].get("image/png", {}).get("width", "")
        words = html.escape("".join(data["text/plain"]).strip("<>"))
        picture = "".join(data["image/png"]).strip()
        return f'<img alt="{words}" width="{width}" src="data:image/png;base64,{picture}">'
    return f"```text\n{''.join(data['text/plain']).rstrip()}\n```"


def main() -> None:
    """Write the pages, then build; warnings are errors."""
    shutil.rmtree(BUILT, ignore_errors=True)
    shutil.copytree(DOCS, BUILT, ignore=shutil.ignore_patterns("*.py", "*.ipynb", "figures", "__pycache__"))
    for name in ("CHANGELOG.md", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        (BUILT / name.lower()).write_text(text, encoding="utf-8")
    for page in BUILT.glob("*.md"):  # what the repository holds as a notebook or a text file is a page of the site
        text = page.read_text(encoding="utf-8").replace(".ipynb)", ".md)")
        page.write_text(text.replace("](../src/loopscope/store/columns.txt)", "](columns.md)"), encoding="utf-8")
    (BUILT / "columns.md").write_text(columns_page(), encoding="utf-8")
    for notebook in sorted((DOCS / "notebooks").glob("*.ipynb")):
        (BUILT / "notebooks" / f"{notebook.stem}.md").write_text(notebook_page(notebook), encoding="utf-8")
    sys.exit(subprocess.run([sys.executable, "-m", "zensical", "build", "--strict"], cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    main()
