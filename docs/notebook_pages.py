"""A hook for `make docs`: each notebook becomes a page, with the outputs that are stored in it.

Cells become Markdown, so that pages look like the others, link to them and load nothing. Of an output the richest form
is shown: HTML, then a picture, then text.
"""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by MkDocs when it has found the files: notebooks are replaced by pages of the same name."""
    for found in [file for file in files if file.src_uri.endswith(".ipynb")]:
        files.remove(found)
        notebook = json.loads(Path(str(found.abs_src_path)).read_text(encoding="utf-8"))
        name = found.src_uri.removesuffix(".ipynb") + ".md"
        files.append(File.generated(config, name, content=page(notebook, found.src_uri)))
    return files


def page(notebook: dict[str, Any], name: str) -> str:
    """The Markdown of a notebook."""
    parts = [part for cell in notebook["cells"] for part in _cell(cell)]
    # Outputs are wide: the list of headings leaves them its place.
    return "---\nhide: [toc]\n---\n\n" + "\n\n".join(
        [*parts, f"*This page is the notebook `docs/{name}` with its outputs.*", ""]
    )


def _cell(cell: dict[str, Any]) -> list[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    return [f"```python\n{source}\n```", *map(_output, cell["outputs"])]


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
