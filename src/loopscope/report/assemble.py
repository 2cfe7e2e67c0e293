"""The page from its parts: style sheets and scripts in order, a policy that allows only these, packs as inert data."""

import base64
import hashlib
import html
from collections.abc import Iterable, Iterator
from importlib.resources import files

STYLES = (
    "tokens.css",
    "base.css",
    "layout.css",
    "overview.css",
    "explorer.css",
    "question.css",
    "studies.css",
    "print.css",
)
SCRIPTS = (
    "dom.js",
    "text.js",
    "codec.js",
    "numbers.js",
    "scales.js",
    "data.js",
    "address.js",
    "theme.js",
    "depth_plot.js",
    "dots.js",
    "overview.js",
    "filters.js",
    "scatter.js",
    "table.js",
    "explorer.js",
    "tints.js",
    "path_plot.js",
    "step_panel.js",
    "options.js",
    "question.js",
    "studies.js",
    "provenance.js",
    "main.js",
)


def style() -> str:
    """All style sheets as one."""
    return "\n".join(part("page", name) for name in STYLES)


def script() -> str:
    """All scripts in one scope of their own."""
    return '(() => {\n"use strict";\n' + "\n".join(part("page", name) for name in SCRIPTS) + "\n})();\n"


def part(folder: str, name: str) -> str:
    """One of the page's source files."""
    return files("loopscope.report").joinpath(folder, name).read_text(encoding="utf-8")


def policy(styles: str, scripts: str) -> str:
    """Nothing may load, run or be sent but this one style sheet, this one script and images in the page itself."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(scripts)}",
            f"style-src {_hash(styles)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def document(title: str, early: Iterable[tuple[str, str]], late: Iterable[tuple[str, str]]) -> Iterator[str]:
    """The file in pieces.

    Args:
        title: of the window.
        early: packs by name that the first view needs; they stand before the script.
        late: packs that are decoded when they are looked at; they stand after it, so that the first view does not wait
            until the browser has read them.
    """
    styles, scripts = style(), script()
    for text in (styles, scripts):
        if "</" in text:
            raise ValueError("a page source holds '</', which could end its element")
    filled = {"policy": html.escape(policy(styles, scripts)), "title": html.escape(title), "style": styles}
    head, _, tail = part("page", "page.html").partition("<!--data-->")
    for name, value in filled.items():
        head = head.replace(f"<!--{name}-->", value)
    yield head
    yield from (_inert(name, text) for name, text in early)
    yield f"<script>{scripts}</script>\n"
    yield from (_inert(name, text) for name, text in late)
    yield tail


def _inert(name: str, packed: str) -> str:
    """A data block: browsers neither run nor interpret a script element of an unknown type."""
    return f'<script type="application/x-loopscope" id="{html.escape(name)}">{packed}</script>\n'
